// SPDX-License-Identifier: Apache-2.0

// Command vernier-cdi-hook runs several of NVIDIA's CDI hooks one after the other
// in one process:
//
//	vernier-cdi-hook HOOK [ARG...] [-- HOOK [ARG...]]...
//
// The runtime waits for each hook of a container's start, and most of a hook's
// time is its program's own start. The hooks themselves are those of the NVIDIA
// Container Toolkit, unchanged. The container's state comes on standard input. A
// hook that fails ends the rest and the start. One that this version does not know
// is a warning.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/api/version"
	"vernier.dev/vernier/nri-plugin/cdi/chain"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vernier-cdi-hook:", err)
		os.Exit(1)
	}
}

// run runs the hooks, each on the same state.
func run(args []string) error {
	if len(args) == 1 && args[0] == "--version" {
		return runHook(args)
	}
	state, err := rewindable(os.Stdin)
	if err != nil {
		return fmt.Errorf("reading the container's state: %w", err)
	}
	// The hooks, and the process that update-ldcache makes, read standard input.
	os.Stdin = state
	for hook := range chain.Split(args) {
		if _, err := state.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := runHook(hook); err != nil {
			return fmt.Errorf("%s: %w", hook[0], err)
		}
	}
	return nil
}

// runHook makes the command anew, because a command keeps what it has parsed.
func runHook(args []string) error {
	log := logrus.New()
	hook := commands.ConfigureCDIHookCommand(log, &cli.Command{Name: "vernier-cdi-hook"})
	hook.Version = version.String() + ", with NVIDIA Container Toolkit's hooks"
	return hook.Run(context.Background(), append([]string{hook.Name}, args...))
}

// rewindable is a file in memory with all that is to be read.
func rewindable(r io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate("container-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "container-state")
	_, err = io.Copy(f, r)
	return f, err
}
