// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
)

// endWait bounds the wait for a daemon that was asked to end.
const endWait = 2 * time.Second

// Program is nvidia-cuda-mps-control of the node's driver.
type Program struct {
	// Root is where it is run, as chroot; "/" is where we are.
	Root string
	// Path of the program below Root, Libraries the folder there that has libcuda.
	Path, Libraries string
	// Cgroup is the directory of the cgroup v2 hierarchy that daemons are put into, so
	// that they do not end with the agent's container. Empty leaves them in ours.
	Cgroup string
}

// FindProgram looks for the program below the root of the driver's files, whose
// libraries are in the folder.
func FindProgram(root, libraries string) (*Program, error) {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/bin"} {
		path := filepath.Join(dir, controlName)
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.Mode().IsRegular() {
			return &Program{Root: "/", Path: filepath.Join(root, path), Libraries: libraries}, nil
		}
	}
	return nil, fmt.Errorf("the driver below %s has no %s; install NVIDIA's compute utilities, or set --driver-root", root, controlName)
}

// InRoot runs the program in the root that it was found below.
func (p *Program) InRoot(root string) {
	below := func(path string) string { return "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/") }
	p.Root, p.Path, p.Libraries = root, below(p.Path), below(p.Libraries)
}

func (p *Program) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.Path, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), envPipe+"="+pipes(dir), envLog+"="+filepath.Join(dir, "log"), "LD_LIBRARY_PATH="+p.Libraries)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if p.Root != "/" {
		cmd.SysProcAttr.Chroot = p.Root
	}
	return cmd
}

// foreground has the daemon run as the process that we start.
const foreground = "-f"

// Start starts a daemon that goes on without us, and does not wait for it. The folder's
// tmpfs is mounted.
func (p *Program) Start(dir, uuid string, driver branch) error {
	output, err := os.OpenFile(filepath.Join(dir, "log", "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := p.command(context.Background(), dir, driver.options()...)
	// The variable goes before the option.
	cmd.Env = append(cmd.Env, envVisible+"="+uuid, envProtocol+"="+strconv.Itoa(driver.protocol()))
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr.Setsid = true
	if p.Cgroup != "" {
		if err := os.MkdirAll(p.Cgroup, 0o755); err != nil {
			return err
		}
		group, err := os.Open(p.Cgroup)
		if err != nil {
			return err
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	err = apart(func() error {
		if err := p.arrange(dir); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // its end is seen by its silence
	return nil
}

// Ask sends one command of the legacy protocol, whose command line reads them.
func (p *Program) Ask(dir, command string, wait time.Duration) (string, error) {
	return p.send(dir, command, command+"\n", wait)
}

// Run runs one command of protocol 3, which is the command line's arguments.
func (p *Program) Run(dir string, wait time.Duration, args ...string) (string, error) {
	reply, err := p.send(dir, strings.Join(args, " "), "", wait, args...)
	return strings.TrimSpace(reply), err
}

func (p *Program) send(dir, command, input string, wait time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	cmd := p.command(ctx, dir, args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = wait
	var reply, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &reply, &complaint
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: no answer within %s", command, wait)
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(complaint.Bytes()))
	}
	return reply.String(), nil
}

// Process is one of a folder's.
type Process struct {
	PID int
	// Server tells a server from the daemon.
	Server bool
	// start is when it was started, as the kernel counts it: with the PID it names
	// the process, for numbers are used again.
	start uint64
}

// Processes finds them by what they were started with: the folder's pipes. The owner of a
// process decides what it was started with. So one in another PID namespace than ours, as a
// container has, is none of them. Else a tenant's process with a daemon's name would be ended
// or waited for in place of the real one.
func (p *Program) Processes(dir string) ([]Process, error) {
	running, err := procfs.AllProcs()
	var all []Process
	for _, of := range running {
		if found, is := lookUp(of, dir); is && besideUs(of.PID) {
			all = append(all, found)
		}
	}
	return all, err
}

// besideUs reports whether a process is in our PID namespace.
func besideUs(pid int) bool {
	own, err := os.Stat("/proc/self/ns/pid")
	its, bad := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && bad == nil && os.SameFile(own, its)
}

// lookUp reports whether a process is the folder's. One that has ended is not, nor is a
// command that we are sending.
func lookUp(of procfs.Proc, dir string) (Process, bool) {
	args, err := of.CmdLine()
	if err != nil || len(args) == 0 {
		return Process{}, false
	}
	name := filepath.Base(args[0])
	if name != serverName && (name != controlName || !slices.Contains(args, foreground)) {
		return Process{}, false
	}
	if environ, err := of.Environ(); err != nil || !slices.Contains(environ, envPipe+"="+pipes(dir)) {
		return Process{}, false
	}
	stat, err := of.Stat()
	return Process{PID: of.PID, Server: name == serverName, start: stat.Starttime}, err == nil
}

// End ends processes, the daemon before its servers, and kills what does not end.
func (p *Program) End(all []Process) error {
	slices.SortStableFunc(all, func(a, b Process) int {
		switch {
		case a.Server == b.Server:
			return 0
		case a.Server:
			return 1
		}
		return -1
	})
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for _, one := range all {
			if err := one.signal(how); err != nil {
				return err
			}
		}
		for end := time.Now().Add(endWait); ; time.Sleep(startLook) {
			all = slices.DeleteFunc(all, func(one Process) bool { return !one.lives() })
			if len(all) == 0 {
				return nil
			}
			if time.Now().After(end) {
				break
			}
		}
	}
	return fmt.Errorf("process %d does not end", all[0].PID)
}

func (one Process) lives() bool {
	of, err := procfs.NewProc(one.PID)
	if err != nil {
		return false
	}
	stat, err := of.Stat()
	return err == nil && stat.Starttime == one.start && stat.State != "Z" && stat.State != "X"
}

// signal reaches this process or nobody.
func (one Process) signal(how syscall.Signal) error {
	held, err := unix.PidfdOpen(one.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(held)
	if !one.lives() {
		return nil
	}
	if err := unix.PidfdSendSignal(held, how, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Root reports whether a process is root as we see it: root of a container is, unless the
// container has a user namespace. One that cannot be read may be.
func Root(pid uint32) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if ids, is := strings.CutPrefix(line, "Uid:"); is {
			return slices.Contains(strings.Fields(ids), "0")
		}
	}
	return true
}
