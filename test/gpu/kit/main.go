// SPDX-License-Identifier: Apache-2.0

// Command gpu-kit checks on a machine with an NVIDIA GPU what Vernier promises of one:
// the driver's facts, memory to the limit and past it, shares of compute, and what the
// limiter costs. It runs from one folder, made by make gpu-kit, and needs NVIDIA's
// driver and nothing else; it uses PyTorch, CuPy, JAX, Triton and nvcc where they are.
//
// Invariants:
//   - It changes nothing on the card: no compute mode, no MIG, no clocks.
//   - It never asks for more managed memory than is free.
//   - Each row ends by its deadline; what it started ends with it, by its own process group.
//   - The report is complete after every row, so that an abort loses no result.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"vernier.dev/vernier/test/gpu/report"
)

// skip is the error of a row that can't be checked on this machine.
type skip string

func (s skip) Error() string { return string(s) }

// row is one check and its result.
type row struct {
	report.Row
	most  time.Duration // that it may take
	check func(context.Context, *kit, *row) error
}

// machine is what the report says of it.
type machine struct {
	Driver  string `json:"driver"`
	Devices []gpu  `json:"devices"`
}

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-kit:", err)
		code = 2
	}
	os.Exit(code)
}

func run() (int, error) {
	path := flag.String("report", "gpu-kit.json", "`file` of the JSON report; it is replaced")
	only := flag.String("only", "", "comma-separated `names` of the rows to run (default: all)")
	budget := flag.Duration("budget", 7*time.Minute+40*time.Second, "time for all rows; those that don't fit are skipped")
	simulated := flag.Bool("simulated", false, "the GPU is test/simgpu: shorter loads, and kernels compute nothing")
	shares := flag.String("shares", "", "run what is within a share by this `program`, which takes vgpu-run's --core and --mem-mib")
	wrap := flag.String("wrap", "", "write the fat binary of this PTX `file` to the first argument, and end")
	flag.Parse()
	if *wrap != "" {
		return 0, wrapFile(*wrap, flag.Arg(0))
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	scratch, err := os.MkdirTemp("", "gpu-kit-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	k := &kit{folder: filepath.Dir(self), scratch: scratch, simulated: *simulated, shares: *shares}
	rep := report.New[machine](*simulated)
	end := time.Now().Add(*budget)
	var unwritten error
	for _, r := range rows {
		if *only != "" && r.Name != rows[0].Name && !slices.Contains(strings.Split(*only, ","), r.Name) {
			continue
		}
		if r == rows[len(rows)-1] {
			end = end.Add(10 * time.Second) // kept for it
		}
		k.run(ctx, r, end)
		rep.Machine = machine{k.driver, k.devices}
		unwritten = rep.Add(*path, &r.Row) // a full disk ends no row
	}
	return rep.End(*path), unwritten
}

// run runs one row. Without the facts of the first no other can be run.
func (k *kit) run(ctx context.Context, r *row, end time.Time) {
	begun := time.Now()
	if k.shares != "" {
		r.most *= 2 // pods start and end beside
	}
	most := min(r.most, time.Until(end))
	rowCtx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var err error
	switch {
	case ctx.Err() != nil:
		err = skip("interrupted")
	case most < r.most/4:
		err = skip("no time left; --only " + r.Name + " runs it")
	case len(k.devices) == 0 && r.Name != rows[0].Name:
		err = skip("no device can be used: see the first row")
	default:
		err = r.check(rowCtx, k, r)
		if err != nil && rowCtx.Err() != nil {
			err = fmt.Errorf("not done within %s: %w", most.Round(time.Second), err)
		}
	}
	r.Seconds = float64(time.Since(begun).Milliseconds()) / 1000
	r.Verdict = report.Passed
	if err != nil {
		r.Verdict, r.Why = report.Failed, err.Error()
		if s := skip(""); errors.As(err, &s) {
			r.Verdict = report.Skipped
		}
	}
}

func wrapFile(ptx, to string) error {
	text, err := os.ReadFile(ptx)
	if err != nil {
		return err
	}
	return os.WriteFile(to, fatBinary(text, 6, 0, 50), 0o644)
}

// fatBinary wraps PTX as NVIDIA's fatbinary does without compression: one entry, of
// that version of PTX, for that processor and newer ones.
func fatBinary(ptx []byte, major, minor uint16, processor uint32) []byte {
	payload := append(slices.Clone(ptx), make([]byte, 8-len(ptx)%8)...) // ends in a NUL
	const headBytes, entryBytes = 16, 72
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xba55ed50)
	b = le.AppendUint16(b, 1)
	b = le.AppendUint16(b, headBytes)
	b = le.AppendUint64(b, entryBytes+uint64(len(payload)))
	b = le.AppendUint16(b, 1) // PTX
	b = le.AppendUint16(b, 0x101)
	b = le.AppendUint32(b, entryBytes)
	b = le.AppendUint64(b, uint64(len(payload)))
	b = le.AppendUint32(b, 0)    // bytes when compressed
	b = le.AppendUint32(b, 0x40) // where the options are in the entry
	b = le.AppendUint16(b, minor)
	b = le.AppendUint16(b, major)
	b = le.AppendUint32(b, processor)
	b = le.AppendUint64(b, 0)             // no name
	b = le.AppendUint64(b, 0x11)          // 64 bits, Linux
	b = append(b, make([]byte, 8+8+8)...) // nothing, bytes before compression, no options
	return append(b, payload...)
}
