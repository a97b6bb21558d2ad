// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/cmd/vgpu-run/internal/mounts"
)

// supervise starts the command, passes signals on to it, waits for its end and
// returns its exit code and how long it ran. An error means that it did not run.
func supervise(files mounts.Files, command, env []string) (int, time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	failed, theirs, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = failed.Close() }()
	// Inherited under its own number, so that the command's descriptors are those
	// that vgpu-run was given; closed when the command takes over.
	fd := theirs.Fd()
	if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
		return 0, 0, err
	}
	cmd := exec.Command(self, append([]string{become, strconv.Itoa(int(fd)), files.Library, files.Limits, files.Counters, files.Pace, files.Scratch}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = env
	cmd.SysProcAttr = mounts.Namespace()
	// The kernel kills the command when the thread that started it ends: this one is main's,
	// and stays locked.
	runtime.LockOSThread()
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	s := catch()
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return 0, 0, mounts.Explain(err)
	}
	go s.passOn(cmd.Process)
	why, _ := io.ReadAll(failed) // ends when the command takes over
	started := time.Now()
	status, err := s.wait(cmd.Process.Pid)
	took := time.Since(started)
	switch {
	case err != nil:
		return 0, 0, err
	case len(why) > 0:
		return status.ExitStatus(), 0, errors.New(string(why))
	case status.Signaled():
		return 128 + int(status.Signal()), took, nil
	default:
		return status.ExitStatus(), took, nil
	}
}

// signals are what vgpu-run receives in place of its command.
type signals struct {
	pass chan os.Signal
	// atTerminal: the terminal sends the command what it sends vgpu-run.
	atTerminal bool
	// stopping: the command was sent TSTP in place of vgpu-run, which stops with it.
	stopping atomic.Bool
}

// catch begins to take the signals that are to be passed on. What vgpu-run was started
// to ignore (nohup) stays ignored. Of PIPE the command gets what others send; a write of
// vgpu-run's own to a closed pipe fails as any other write.
func catch() *signals {
	s := &signals{pass: make(chan os.Signal, 16)}
	foreground, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP)
	s.atTerminal = err == nil && foreground == unix.Getpgrp()
	drop := make(chan os.Signal, 1)
	for _, each := range []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGPIPE, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT} {
		fromTerminal := each == unix.SIGINT || each == unix.SIGQUIT || each == unix.SIGTSTP || each == unix.SIGWINCH
		switch {
		case signal.Ignored(each):
		case s.atTerminal && fromTerminal:
			signal.Notify(drop, each)
		default:
			signal.Notify(s.pass, each)
		}
	}
	return s
}

func (s *signals) passOn(command *os.Process) {
	for each := range s.pass {
		if each == unix.SIGTSTP {
			s.stopping.Store(true)
		}
		_ = command.Signal(each)
	}
}

// wait returns how the command ended. While job control has stopped the command vgpu-run
// is stopped too, so that the shell that waits for vgpu-run has its prompt.
func (s *signals) wait(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case !status.Stopped():
			return status, nil
		case status.StopSignal() != unix.SIGSTOP && (s.stopping.Swap(false) || s.atTerminal):
			_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
		}
	}
}
