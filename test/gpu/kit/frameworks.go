// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// script is one of the kit's Python scripts with its arguments.
func (k *kit) script(name string, args ...string) []string {
	return append([]string{"python3", k.path(filepath.Join("python", name))}, args...)
}

// has skips the row where Python has no such module that can use the GPU natively.
func (k *kit) has(ctx context.Context, r *row, module string) error {
	if _, err := exec.LookPath("python3"); err != nil {
		return skip("there is no python3 on this machine")
	}
	var found struct{ Missing, Version string }
	if err := k.ask(ctx, nil, &found, k.script("probe.py", module)...); err != nil {
		return err
	}
	if found.Missing != "" {
		return skip(fmt.Sprintf("python3 has no %s that can use the GPU: %s", module, found.Missing))
	}
	r.Set("version", found.Version)
	return nil
}

// ended is how a framework's script saw the device, and how taking memory ended.
type ended struct {
	Total    uint64
	Held     uint64
	Error    string
	Checksum float64
}

// torchMemory: PyTorch sees its slice as the device, gets memory up to it, and its own
// error past it.
func torchMemory(ctx context.Context, k *kit, r *row) error {
	if err := k.has(ctx, r, "torch"); err != nil {
		return err
	}
	var got ended
	if err := k.ask(ctx, memory(k.limit()), &got, k.script("torch_work.py", "memory", strconv.Itoa(k.most()))...); err != nil {
		return err
	}
	return k.held(r, got)
}

// held checks what a framework says at the limit.
func (k *kit) held(r *row, got ended) error {
	limit := uint64(k.limit()) * mib
	r.Set("held_mib", got.Held/mib)
	r.Set("error", got.Error)
	switch {
	case got.Total != limit:
		return fmt.Errorf("it sees a device of %d bytes, with a limit of %d", got.Total, limit)
	case got.Error == "" || got.Held > limit:
		return fmt.Errorf("it holds %d MiB, with a limit of %d: error %q", got.Held/mib, k.limit(), got.Error)
	case got.Held == 0:
		return fmt.Errorf("it could hold nothing of %d MiB: %s", k.limit(), got.Error)
	}
	return nil
}

// torch is what a training or an inference prints.
type torch struct {
	Steps   int
	Seconds float64
	Loss    float64
}

func (t torch) rate() float64 { return float64(t.Steps) / t.Seconds }

// torchRuns runs the script in shares side by side, from the same moment on.
func (k *kit) torchRuns(ctx context.Context, what string, seconds float64, shares ...share) ([]torch, error) {
	var all []*process
	done := make([]torch, len(shares))
	for _, s := range shares {
		p, err := k.start(ctx, s, k.script("torch_work.py", what, fmt.Sprint(seconds))...)
		if err != nil {
			return nil, err
		}
		defer func() { _ = p.cmd.Cancel() }()
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.ready(); err != nil {
			return nil, err
		}
	}
	var err error
	for _, p := range all {
		err = errors.Join(err, p.goOn())
	}
	for i, p := range all {
		err = errors.Join(err, p.result(&done[i]))
	}
	return done, err
}

// torchShares runs natively and at 100 percent, twice in turn, and at 30.
func (k *kit) torchShares(ctx context.Context, r *row, what string) error {
	if err := k.has(ctx, r, "torch"); err != nil {
		return err
	}
	var rates [2]float64
	var loss float64
	for range 2 {
		for i, s := range []share{nil, core(100)} {
			done, err := k.torchRuns(ctx, what, 6, s)
			if err != nil {
				return err
			}
			rates[i] += done[0].rate() / 2
			loss = done[0].Loss
		}
	}
	r.Set("native_per_s", rates[0])
	r.Set("limited_per_s", rates[1])
	r.Set("at_100", 100*rates[1]/rates[0])
	k.native["torch "+what] = rates[0]
	done, err := k.torchRuns(ctx, what, 8, core(30))
	if err != nil {
		return err
	}
	percent := 100 * done[0].rate() / rates[0]
	r.Set("at_30", percent)
	if !(done[0].Loss < 2*loss+0.1) {
		return fmt.Errorf("the loss is %.3f, natively %.3f", done[0].Loss, loss)
	}
	if rates[1] < 0.9*rates[0] {
		return fmt.Errorf("at 100 percent it runs at %.1f percent of its native speed", 100*rates[1]/rates[0])
	}
	return k.within(what, 30, percent)
}

func torchTraining(ctx context.Context, k *kit, r *row) error {
	return k.torchShares(ctx, r, "train")
}

func torchInference(ctx context.Context, k *kit, r *row) error {
	return k.torchShares(ctx, r, "infer")
}

// torchBeside trains twice at a time, and compares the work done and NVML's word.
func torchBeside(ctx context.Context, k *kit, r *row) error {
	if err := k.has(ctx, r, "torch"); err != nil {
		return err
	}
	native := k.native["torch train"]
	if native == 0 {
		done, err := k.torchRuns(ctx, "train", 6, nil)
		if err != nil {
			return err
		}
		native = done[0].rate()
	}
	const seconds = 12
	watch, err := k.start(ctx, nil, k.argv("kernels.ptx", "shares", strconv.Itoa(2*seconds))...)
	if err != nil {
		return err
	}
	done, err := k.torchRuns(ctx, "train", seconds, core(30), core(60))
	var seen any
	if watch.result(&seen) == nil {
		r.Set("nvml", seen)
	}
	if err != nil {
		return err
	}
	for i, quota := range []int{30, 60} {
		percent := 100 * done[i].rate() / native
		r.Set(fmt.Sprintf("work_%d", quota), percent)
		err = errors.Join(err, k.within("training", quota, percent))
	}
	return err
}

// framework runs a script natively and within a share: it prints the same sum, and is
// refused memory past the share if it takes any.
func framework(module string) func(context.Context, *kit, *row) error {
	return func(ctx context.Context, k *kit, r *row) error {
		if err := k.has(ctx, r, module); err != nil {
			return err
		}
		return k.alike(ctx, r, k.script(module+"_work.py")...)
	}
}

// alike runs a program natively, without taking memory, and within a share.
func (k *kit) alike(ctx context.Context, r *row, argv ...string) error {
	var native, limited ended
	if err := k.ask(ctx, nil, &native, append(argv, "0")...); err != nil {
		return err
	}
	if err := k.ask(ctx, append(core(50), memory(k.limit())...), &limited, append(argv, strconv.Itoa(k.most()))...); err != nil {
		return err
	}
	if native.Checksum == 0 || native.Checksum != limited.Checksum {
		return fmt.Errorf("it computes %g natively and %g within a share", native.Checksum, limited.Checksum)
	}
	if limited.Total == 0 {
		return nil // it doesn't look at memory
	}
	return k.held(r, limited)
}

// nvcc compiles a program of the CUDA runtime here, and runs it natively and limited.
func nvcc(ctx context.Context, k *kit, r *row) error {
	path, err := exec.LookPath("nvcc")
	if err != nil {
		if path, err = exec.LookPath("/usr/local/cuda/bin/nvcc"); err != nil {
			return skip("there is no nvcc on this machine")
		}
	}
	program := filepath.Join(k.scratch, "runtime")
	if out, err := k.command(ctx, nil, path, "-o", program, k.path("runtime.cu")).CombinedOutput(); err != nil {
		return skip(fmt.Sprintf("nvcc compiles nothing here: %v: %s", err, strings.TrimSpace(string(out))))
	}
	return k.alike(ctx, r, program)
}

// nccl runs an all-reduce over two devices natively and within shares of both.
func nccl(ctx context.Context, k *kit, r *row) error {
	if len(k.devices) < 2 {
		return skip("there is one GPU only")
	}
	if err := k.has(ctx, r, "torch"); err != nil {
		return err
	}
	one, two := k.uuid(), k.devices[1].UUID
	var native, limited struct {
		Right bool
		GiBps float64 `json:"gib_per_s"`
	}
	cmd := k.command(ctx, nil, k.script("nccl_work.py")...)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+one+","+two)
	p, err := begin(cmd)
	if err == nil {
		err = p.result(&native)
	}
	if err != nil {
		return skip(fmt.Sprintf("NCCL doesn't work natively: %v", err))
	}
	mem := ",core=50,mem-mib=" + strconv.Itoa(k.limit())
	if err := k.ask(ctx, share{"--device", one + mem, "--device", two + mem}, &limited, k.script("nccl_work.py")...); err != nil {
		return err
	}
	r.Set("native_gib_per_s", native.GiBps)
	r.Set("limited_gib_per_s", limited.GiBps)
	if !native.Right || !limited.Right {
		return fmt.Errorf("the sum is right natively: %t, within shares: %t", native.Right, limited.Right)
	}
	return nil
}
