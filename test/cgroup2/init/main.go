// SPDX-License-Identifier: Apache-2.0

// Command init is the first program of the machine that package cgroup2 boots: it puts
// the files of the outer machine and a layer of its own below one root, mounts cgroup v2
// as systemd does, runs the command that it was handed, and turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	status := 0
	out, err := begin()
	if out == nil {
		out = os.Stdout
	}
	if err == nil {
		status, err = run(out)
	}
	if err != nil {
		fmt.Fprintln(out, "init:", err)
		status = 255
	}
	fmt.Fprintf(out, "exit-status %d\n", status)
	out.Sync()
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

type mount struct {
	source, target, kind, options string
	flags                         uintptr
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

// begin makes the machine what the command expects. The second serial line is the
// command's, the first the kernel's.
func begin() (out *os.File, err error) {
	for _, m := range []mount{
		{"proc", "/proc", "proc", "", 0}, {"sysfs", "/sys", "sysfs", "", 0}, {"dev", "/dev", "devtmpfs", "", 0},
	} {
		if err := m.do(); err != nil {
			return nil, err
		}
	}
	if out, err = os.OpenFile("/dev/ttyS1", os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if err := modules(); err != nil {
		return out, err
	}
	// The outer machine's files, and above them what is written here.
	for _, m := range []mount{
		{"here", "/here", "9p", "trans=virtio,version=9p2000.L,msize=512000,cache=loose", unix.MS_RDONLY},
		{"own", "/own", "tmpfs", "size=90%", 0},
	} {
		if err := m.do(); err != nil {
			return out, err
		}
	}
	if err := errors.Join(os.Mkdir("/own/up", 0o755), os.Mkdir("/own/work", 0o755)); err != nil {
		return out, err
	}
	for _, m := range []mount{
		{"root", "/merged", "overlay", "lowerdir=/here,upperdir=/own/up,workdir=/own/work", 0},
		{"proc", "/merged/proc", "proc", "", 0}, {"sysfs", "/merged/sys", "sysfs", "", 0},
		{"cgroup2", "/merged/sys/fs/cgroup", "cgroup2", "", 0},
		{"dev", "/merged/dev", "devtmpfs", "", 0}, {"devpts", "/merged/dev/pts", "devpts", "", 0},
		{"shm", "/merged/dev/shm", "tmpfs", "", 0}, {"run", "/merged/run", "tmpfs", "", 0},
		// For what cannot be on an overlay, as the layers of another one.
		{"lib", "/merged/var/lib", "tmpfs", "", 0},
	} {
		if err := m.do(); err != nil {
			return out, err
		}
	}
	return out, errors.Join(controllers("/merged/sys/fs/cgroup"), os.Symlink("/proc/self/fd", "/merged/dev/fd"))
}

// modules loads those that there are. Which needs which is not looked up: one that cannot
// be loaded yet is tried again after the others.
func modules() error {
	left, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for {
		var failed []error
		before := len(left)
		left = slices.DeleteFunc(left, func(path string) bool {
			f, err := os.Open(path)
			if err == nil {
				err = unix.FinitModule(int(f.Fd()), "", 0)
				f.Close()
			}
			if err == nil || errors.Is(err, unix.EEXIST) {
				return true
			}
			failed = append(failed, fmt.Errorf("%s: %w", path, err))
			return false
		})
		if len(left) == 0 {
			return nil
		}
		if len(left) == before {
			return errors.Join(failed...)
		}
	}
}

// controllers lets child groups have all of them, as systemd does.
func controllers(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(text)) {
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	return nil
}

// run runs the command below the new root and takes in whoever loses its parent.
func run(out *os.File) (int, error) {
	var c struct {
		Argv, Env []string
		Dir       string
	}
	text, err := os.ReadFile("/command.json")
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return 0, err
	}
	// Mounts of the new root are to be seen there as those of a machine's own: it takes
	// the place of the first one.
	if err := errors.Join(unix.Chdir("/merged"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return 0, fmt.Errorf("changing the root: %w", err)
	}
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return 0, err
	}
	if err := unix.Sethostname([]byte("cgroup2")); err != nil {
		return 0, err
	}
	if lo, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("ip link set lo up: %w: %s", err, lo)
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.Env, c.Dir, out, out
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case pid == cmd.Process.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == cmd.Process.Pid:
			return status.ExitStatus(), nil
		}
	}
}
