// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is held by the one process that starts, stops or has a cluster. It ends
// with the process at the latest.
type Lock struct{ f *os.File }

// TryLock takes the lock in file, or says which process has it.
func TryLock(file string) (l *Lock, holder string, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, "", err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		// For the message that whoever comes second gets; the lock itself is the kernel's.
		err := f.Truncate(0)
		if err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
		}
		return &Lock{f}, "", err
	case unix.EWOULDBLOCK:
		defer f.Close()
		pid, _ := io.ReadAll(f)
		return nil, describe(string(pid)), nil
	default:
		f.Close()
		return nil, "", fmt.Errorf("locking %s: %w", file, err)
	}
}

// WaitLock takes the lock when it becomes free, and says on progress for whom it
// waits.
func WaitLock(ctx context.Context, file string, progress io.Writer) (*Lock, error) {
	for told := ""; ; {
		l, holder, err := TryLock(file)
		if l != nil || err != nil {
			return l, err
		}
		if holder != told {
			fmt.Fprintf(progress, "waiting: %s has a cluster\n", holder)
			told = holder
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s has a cluster: %w", holder, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Unlock gives the lock back.
func (l *Lock) Unlock() { l.f.Close() }

func describe(pid string) string {
	command, err := os.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil {
		return "process " + pid
	}
	return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")))
}
