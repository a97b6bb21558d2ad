// SPDX-License-Identifier: Apache-2.0

// Command vgpu-run runs one command within a share of a GPU, without Kubernetes. It runs
// under libvgpu.so, with the limits and counters that the node agent gives a
// container.
//
// It is four processes, all of this program. The one that was called
// waits and reports. For a moment, one asks the driver for its devices. While
// it shares out the devices' time, one asks NVML how busy each process is. One
// puts the limiter's files into a mount namespace of its own and then
// becomes the command.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"vernier.dev/vernier/cmd/vgpu-run/internal/driver"
	"vernier.dev/vernier/cmd/vgpu-run/internal/options"
	"vernier.dev/vernier/cmd/vgpu-run/internal/samples"
)

// What vgpu-run says of itself, beside the command's own exit codes.
const (
	exitOwn      = 125 // vgpu-run failed
	exitCannot   = 126 // the command can't be run
	exitNotFound = 127 // there is no such command
)

// resizeWord is the first argument of a vgpu-run that runs nothing.
const resizeWord = "resize"

// The first argument of our own children.
const (
	askDriver = "--vgpu-run-ask-driver"
	askNVML   = "--vgpu-run-ask-nvml"
	become    = "--vgpu-run-become"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == askDriver {
		if err := driver.Answer(os.NewFile(3, "answer")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitOwn)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == askNVML {
		if err := samples.Answer(os.Stdin, os.Stdout); err != nil {
			os.Exit(exitOwn) // a machine without NVML is none of the user's concern
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == become {
		os.Exit(becomeCommand(os.Args[2:]))
	}
	// Package pace logs what becomes of every command on the devices. This one's stderr is
	// no place for it: what concerns it is in its report.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if len(os.Args) > 1 && os.Args[1] == resizeWord {
		o, err := options.ParseResize(os.Args[2:], os.Stdout)
		if err == nil {
			err = resize(o)
		}
		if !errors.Is(err, options.ErrHelp) {
			exit(0, err)
		}
		return
	}
	o, err := options.Parse(os.Args[1:], os.Stdout)
	if errors.Is(err, options.ErrHelp) {
		return
	}
	code := 0
	if err == nil {
		code, err = run(o)
	}
	exit(code, err)
}

// exit ends the program with the code, or with our own for an error without one.
func exit(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "vgpu-run:", err)
		if code == 0 {
			code = exitOwn
		}
	}
	os.Exit(code)
}
