// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
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
	signals := catch()
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return 0, 0, mounts.Explain(err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	why, _ := io.ReadAll(failed) // ends when the command takes over
	started := time.Now()
	err = cmd.Wait()
	took := time.Since(started)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 0, 0, err
	}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case len(why) > 0:
		return status.ExitStatus(), 0, errors.New(string(why))
	case status.Signaled():
		return 128 + int(status.Signal()), took, nil
	default:
		return status.ExitStatus(), took, nil
	}
}

// catch returns the signals that are to be passed on, as they come. What vgpu-run
// was started to ignore (nohup) stays ignored; what the terminal sends, it sends to
// the command as well.
func catch() <-chan os.Signal {
	pass, drop := make(chan os.Signal, 16), make(chan os.Signal, 1)
	foreground, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP)
	atTerminal := err == nil && foreground == unix.Getpgrp()
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2} {
		switch {
		case signal.Ignored(s):
		case atTerminal && (s == unix.SIGINT || s == unix.SIGQUIT):
			signal.Notify(drop, s)
		default:
			signal.Notify(pass, s)
		}
	}
	return pass
}
