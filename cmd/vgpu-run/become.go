// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/cmd/vgpu-run/internal/mounts"
)

// becomeCommand runs in the namespace that supervise made: it puts the files into
// place and becomes the command. It returns only if that fails, with the exit
// code; why goes to the descriptor that it was given.
func becomeCommand(args []string) int {
	runtime.LockOSThread() // capabilities are a thread's
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return exitOwn
	}
	unix.CloseOnExec(fd)
	files := mounts.Files{Library: args[1], Limits: args[2], Counters: args[3], Pace: args[4], Scratch: args[5]}
	code, err := take(files, args[6:])
	fmt.Fprint(os.NewFile(uintptr(fd), "failed"), err)
	return code
}

func take(files mounts.Files, command []string) (int, error) {
	if err := mounts.Enter(files); err != nil {
		return exitOwn, mounts.Explain(err)
	}
	if err := mounts.Drop(); err != nil {
		return exitOwn, err
	}
	path, err := exec.LookPath(command[0])
	if errors.Is(err, exec.ErrDot) {
		err = nil // the user's PATH, as a shell takes it
	}
	if err == nil {
		err = unix.Exec(path, command, os.Environ())
		err = fmt.Errorf("%s: %w", path, err)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return exitNotFound, err
	}
	return exitCannot, err
}
