// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"vernier.dev/vernier/test/cluster/machine"
)

// stopGrace is how long a process has after SIGTERM.
const stopGrace = 10 * time.Second

var errDown = errors.New("the cluster is being taken down")

// Command is a program to run in the cluster.
type Command struct {
	// Name identifies the process and its log.
	Name string `json:"name"`
	// Place is the name of the place whose network it gets; empty is the control
	// plane.
	Place string `json:"place"`
	// Argv is the program, by its absolute path, and its arguments.
	Argv []string `json:"argv"`
	// Env is all that the program gets besides PATH and HOME, as KEY=value.
	Env []string `json:"env"`

	// Mounts puts it into the node's mount namespace as well.
	Mounts bool `json:"mounts,omitempty"`
	// Core marks the cluster's own processes.
	Core bool `json:"core,omitempty"`

	files []*os.File
}

// Process is a program that the cluster runs. It outlives nothing: Down ends it.
type Process struct {
	Command
	// Log is the file with its output, of all its starts.
	Log string

	c      *Cluster
	mu     sync.Mutex
	record *record
}

// StartProcess starts a program. It returns once the program runs, which says
// nothing about whether it is ready.
func (c *Cluster) StartProcess(cmd Command) (*Process, error) {
	p := &Process{Command: cmd, Log: c.logFile(cmd.Name), c: c, record: &record{Command: cmd}}
	c.mu.Lock()
	_, taken := c.processes[cmd.Name]
	if !taken {
		c.processes[cmd.Name] = p
		c.state.Processes = append(c.state.Processes, p.record)
	}
	c.mu.Unlock()
	if taken {
		return nil, fmt.Errorf("process %s is there already: use its Start or Restart", cmd.Name)
	}
	return p, p.Start()
}

// Process is the one of that name, or nil.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// Processes are all that were started, in that order.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Process
	for _, r := range c.state.Processes {
		all = append(all, c.processes[r.Command.Name])
	}
	return all
}

func (c *Cluster) logFile(name string) string { return filepath.Join(c.state.LogDir, name+".log") }

// Start starts it again after it has ended.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.record.Process.Running() {
		return fmt.Errorf("process %s runs already", p.Name)
	}
	p.c.mu.Lock()
	down := p.c.down != nil
	p.c.mu.Unlock()
	if down {
		return errDown
	}
	id, err := p.c.spawn(p.Command, p.Log)
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.record.Process = id
	if p.c.down != nil {
		return errDown // and the record is gone already
	}
	return p.c.state.save()
}

func (c *Cluster) spawn(command Command, log string) (machine.Process, error) {
	place := c.Place(command.Place)
	if place == nil {
		return machine.Process{}, fmt.Errorf("there is no place %q", command.Place)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return machine.Process{}, err
	}
	defer out.Close()
	argv := place.Argv(command.Argv...)
	if command.Mounts {
		argv = append([]string{argv[0], "--mount=" + place.mountNS()}, argv[1:]...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	// A later entry wins, so a command may set its own PATH.
	cmd.Env = append([]string{"PATH=" + c.tools.path(), "HOME=" + c.state.Dir}, command.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = command.files
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// Out of the terminal's reach: Ctrl-C is the harness's to handle.
		Setsid: true, UseCgroupFD: true, CgroupFD: int(c.group.Fd()),
	}
	if err := cmd.Start(); err != nil {
		return machine.Process{}, err
	}
	id, err := machine.Lookup(cmd.Process.Pid)
	go cmd.Wait() // reaps it; machine.Process tells when it has ended
	if errors.Is(err, os.ErrProcessDone) {
		return machine.Process{}, fmt.Errorf("it ended at once:\n%s", logTail(log))
	}
	return id, err
}

// ID is the process as it runs, or as it last ran.
func (p *Process) ID() machine.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record.Process
}

// Running says whether it has not ended.
func (p *Process) Running() bool { return p.ID().Running() }

// Signal sends it a signal, such as SIGSTOP.
func (p *Process) Signal(s syscall.Signal) error { return p.ID().Signal(s) }

// Kill ends it with SIGKILL and returns when it is gone.
func (p *Process) Kill(ctx context.Context) error {
	return errors.Join(p.Signal(syscall.SIGKILL), p.ID().Wait(ctx))
}

// Stop ends it with SIGTERM, or with SIGKILL when that takes over ten seconds.
func (p *Process) Stop(ctx context.Context) error { return p.ID().Stop(ctx, stopGrace) }

// Wait returns when it has ended.
func (p *Process) Wait(ctx context.Context) error { return p.ID().Wait(ctx) }

// Restart stops and starts it.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return fmt.Errorf("restarting %s: %w", p.Name, err)
	}
	return p.Start()
}

// Tail is the end of its log, for messages.
func (p *Process) Tail() string { return logTail(p.Log) }

// await calls ready until it succeeds, and gives up when the process ends or the
// context does, with the end of the log.
func (p *Process) await(ctx context.Context, what string, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if !p.Running() {
			return fmt.Errorf("%s: %s ended; the end of %s:\n%s", what, p.Name, p.Log, p.Tail())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %v); the end of %s:\n%s", what, ctx.Err(), err, p.Log, p.Tail())
		case <-time.After(25 * time.Millisecond):
		}
	}
}

func logTail(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	text := string(bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
	return "    " + strings.ReplaceAll(text, "\n", "\n    ")
}
