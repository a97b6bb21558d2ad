// SPDX-License-Identifier: Apache-2.0

// Package machine owns a cluster's footprint on the machine and its removal:
// processes known by more than a number, control groups that hold everything
// started, and the one lock that says who has a cluster.
//
// It knows nothing of Kubernetes, and never signals a process or removes a
// control group that is not the cluster's own by start time or by name.
package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one process of this boot: numbers are reused, a number with its
// start time is not.
type Process struct {
	PID int `json:"pid"`
	// Start is in clock ticks since the machine booted.
	Start uint64 `json:"start"`
}

// Lookup identifies the process that has the number now.
func Lookup(pid int) (Process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, err
	}
	// The command, in parentheses, may hold anything; the fields that follow the
	// last parenthesis start with number 3, and the start time is number 22.
	_, rest, _ := cutLast(string(stat), ")")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return Process{}, fmt.Errorf("/proc/%d/stat has %d fields after the command", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" { // X: while its parent waits for it
		return Process{}, os.ErrProcessDone
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return Process{PID: pid, Start: start}, err
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Running says whether the process has not ended yet. A zombie has ended.
func (p Process) Running() bool {
	now, err := Lookup(p.PID)
	return err == nil && now == p
}

// Signal sends a signal, and nothing to another process that has the number by
// now. A process that has ended is no error.
func (p Process) Signal(s syscall.Signal) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %v to process %d: %w", s, p.PID, err)
	}
	return nil
}

// Wait returns when the process has ended or the context has.
func (p Process) Wait(ctx context.Context) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	for {
		// The descriptor turns readable when the process ends; the timeout is only
		// there to look at the context.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("process %d still runs: %w", p.PID, ctx.Err())
		}
	}
}

// Stop ends the process: SIGTERM, and SIGKILL when grace has passed.
func (p Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.Wait(graceful) == nil {
		return nil
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// open returns a descriptor of the process, or -1 when it has ended.
func (p Process) open() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("process %d: %w", p.PID, err)
	}
	// Only now, with the descriptor in hand, can the number not pass to another.
	if !p.Running() {
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}
