// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// Main is a test package's main function: it brings a system up, has it made ready, runs
// the tests on it and takes it down, also when it is interrupted. It returns the exit
// code, which is not 0 either where a part of Vernier broke down meanwhile.
func Main(m *testing.M, o Options, makeReady func(context.Context, *System) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o.Progress = os.Stderr
	s, err := Up(ctx, o)
	if s != nil {
		defer func() {
			if o.Keep && err == nil && ctx.Err() == nil {
				err = s.Keep()
			} else {
				err = s.Down()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "ending:", err)
			}
		}()
	}
	if err == nil {
		err = makeReady(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bringing up the cluster:", err)
		return 1
	}
	ran := make(chan int, 1)
	go func() { ran <- m.Run() }()
	select {
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "interrupted: taking the cluster down")
		return 1
	case code := <-ran:
		crashes, err := s.crashes()
		if err == nil && len(crashes) == 0 {
			return code
		}
		fmt.Fprintf(os.Stderr, "parts of Vernier broke down: %v %v\n", strings.Join(crashes, "\n"), err)
		return 1
	}
}

// crashes are the lines in which a part says that it broke down, in Go's own words or in
// those of the libraries that recover. Parts that end are started again, and what
// Vernier does is right over restarts, so that no test needs to see one.
func (s *System) crashes() (lines []string, err error) {
	for _, p := range s.Parts() {
		log, e := os.ReadFile(p.Log)
		err = errors.Join(err, e)
		for line := range strings.Lines(string(log)) {
			if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "Observed a panic") {
				lines = append(lines, fmt.Sprintf("%s (%s): %s", p.Name, p.Log, strings.TrimSpace(line)))
			}
		}
	}
	return lines, err
}
