// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const outOfMemory = 2

// memoryPaths: each way to memory leads up to the limit, is refused past it with the error
// of a full card, and gives all of it back.
func memoryPaths(ctx context.Context, k *kit, r *row) error {
	var got struct {
		Paths []struct {
			Path            string
			There           bool
			Held            uint64
			Result, Freeing int
			Before          uint64 `json:"free_before"`
			Full            uint64 `json:"free_full"`
			After           uint64 `json:"free_after"`
		}
	}
	if err := k.program(ctx, memory(k.limit()), &got, "paths", strconv.Itoa(k.most())); err != nil {
		return err
	}
	limit := uint64(k.limit()) * mib
	var wrong []string
	for _, p := range got.Paths {
		if !p.There {
			r.Set(p.Path, "not on this driver")
			continue
		}
		r.Set(p.Path+"_mib", p.Held/mib)
		least := p.Before - min(p.Before, 64*mib) // pools grow by 32 MiB
		if slices.Contains([]string{"array", "array3d", "mipmap"}, p.Path) {
			least = p.Before * 7 / 10 // the driver pads them, and a second level isn't counted
		}
		bad := ""
		switch {
		case p.Result == 0:
			bad = fmt.Sprintf("%d MiB were had, and more would have been", p.Held/mib)
		case p.Result != outOfMemory:
			bad = fmt.Sprintf("past the limit the error is %d", p.Result)
		case p.Held > p.Before || p.Before > limit:
			bad = fmt.Sprintf("%d MiB were had of %d free", p.Held/mib, p.Before/mib)
		case p.Held < least:
			bad = fmt.Sprintf("only %d MiB were had of %d free", p.Held/mib, p.Before/mib)
		case p.Full > p.Before-p.Held:
			bad = fmt.Sprintf("with %d MiB held, %d of %d are said to be free", p.Held/mib, p.Full/mib, p.Before/mib)
		case p.Freeing != 0:
			bad = fmt.Sprintf("freeing ended with error %d", p.Freeing)
		case p.After+32*mib < p.Before:
			bad = fmt.Sprintf("%d MiB were free before and %d are after", p.Before/mib, p.After/mib)
		}
		if bad != "" {
			wrong = append(wrong, p.Path+": "+bad)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("limit %d MiB: %s", k.limit(), strings.Join(wrong, "; "))
	}
	if len(got.Paths) == 0 {
		return errors.New("nothing was tried")
	}
	return nil
}

// taken is a program that keeps what memory it got.
type taken struct {
	PID    int
	Held   uint64
	Result int
}

// driverCount: what the driver itself counts of a program at its limit is within the limit.
func driverCount(ctx context.Context, k *kit, r *row) error {
	var before, full facts
	if err := k.program(ctx, nil, &before, "nvml"); err != nil {
		return err
	}
	p, err := k.start(ctx, memory(k.limit()), k.argv("kernels.ptx", "take", strconv.Itoa(k.most()))...)
	if err != nil {
		return err
	}
	var got taken
	if err := p.line(&got); err != nil {
		return err
	}
	if err := k.program(ctx, nil, &full, "nvml"); err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	used := func(f facts) uint64 {
		return f.Devices[slices.IndexFunc(f.Devices, func(d nvmlDevice) bool { return d.UUID == k.uuid() })].Used
	}
	counted := used(full) - min(used(full), used(before))
	source := "device"
	for _, d := range full.Devices {
		for _, process := range d.Processes {
			if d.UUID == k.uuid() && process.PID == got.PID && process.Used > 0 {
				counted, source = process.Used, "process"
			}
		}
	}
	r.Set("held_mib", got.Held/mib)
	r.Set("driver_counts_mib", counted/mib)
	r.Set("driver_counts_the", source)
	// Code that the driver loads at a first use is charged late.
	if most := uint64(k.limit()+64) * mib; counted > most {
		return fmt.Errorf("the driver counts %d MiB of the %s, with a limit of %d", counted/mib, source, k.limit())
	}
	if counted < got.Held {
		return fmt.Errorf("the driver counts %d MiB of the %s, which holds %d", counted/mib, source, got.Held/mib)
	}
	return nil
}

// manyProcesses: the processes of one share hold no more than it together.
func manyProcesses(ctx context.Context, k *kit, r *row) error {
	const processes = 4
	var got struct {
		Held    uint64
		Refused int
	}
	if err := k.program(ctx, memory(k.limit()), &got, "processes", strconv.Itoa(processes), strconv.Itoa(k.most()/processes)); err != nil {
		return err
	}
	r.Set("held_mib", got.Held/mib)
	r.Set("limit_mib", k.limit())
	if got.Held > uint64(k.limit())*mib || got.Refused == 0 {
		return fmt.Errorf("%d processes hold %d MiB together, with a limit of %d; %d were refused more", processes, got.Held/mib, k.limit(), got.Refused)
	}
	return nil
}

// retake: what a process held that was killed is available to the next request.
func retake(ctx context.Context, k *kit, r *row) error {
	var got struct {
		Held           uint64
		Before, Result int
		Ms             float64
		Tries          int
	}
	if err := k.program(ctx, memory(k.limit()), &got, "retake", strconv.Itoa(k.limit())); err != nil {
		return err
	}
	r.Set("ms", got.Ms)
	r.Set("tries", got.Tries)
	if got.Before != outOfMemory || got.Result != 0 {
		return fmt.Errorf("half of what the other holds: error %d while it lives, %d for %.0f ms after SIGKILL", got.Before, got.Result, got.Ms)
	}
	return nil
}

// freedAfterKill measures how long the driver takes to free a killed program's memory.
func freedAfterKill(ctx context.Context, k *kit, r *row) error {
	if k.simulated {
		return skip("the simulated driver frees it for whoever asks for memory")
	}
	p, err := k.start(ctx, nil, k.argv("kernels.ptx", "take", strconv.Itoa(k.limit()))...)
	if err != nil {
		return err
	}
	var holder taken
	if err := p.line(&holder); err != nil {
		return err
	}
	var got struct {
		Before, After uint64
		Ms            float64
	}
	err = k.program(ctx, nil, &got, "freed", strconv.Itoa(p.cmd.Process.Pid), strconv.FormatUint(holder.Held/mib*9/10, 10))
	_ = p.end()
	if err != nil {
		return err
	}
	r.Set("ms", got.Ms)
	r.Set("held_mib", holder.Held/mib)
	if got.After < got.Before+holder.Held*9/10 {
		return fmt.Errorf("after %.0f ms %d MiB of %d are free again", got.Ms, (got.After-min(got.After, got.Before))/mib, holder.Held/mib)
	}
	return nil
}

// hidden: a device that wasn't given can't be seen or used.
func hidden(ctx context.Context, k *kit, r *row) error {
	if len(k.devices) < 2 {
		return skip("there is one GPU only")
	}
	other := k.devices[1].UUID
	var cuda struct{ Devices []gpu }
	if err := k.program(ctx, share{"--device", other}, &cuda, "info"); err != nil {
		return err
	}
	var nvml facts
	if err := k.program(ctx, share{"--device", other}, &nvml, "nvml"); err != nil {
		return err
	}
	if len(cuda.Devices) != 1 || cuda.Devices[0].UUID != other || len(nvml.Devices) != 1 || nvml.Devices[0].UUID != other {
		return fmt.Errorf("with --device %s, CUDA shows %+v and NVML %+v", other, cuda.Devices, nvml.Devices)
	}
	return nil
}

// peerCopies: two devices copy to each other, each is charged for what is on it, and what
// they say of each other is what they say natively.
func peerCopies(ctx context.Context, k *kit, r *row) error {
	if len(k.devices) < 2 {
		return skip("there is one GPU only")
	}
	type result struct {
		CanAccess int `json:"can_access"`
		Right     int
		Charged   []uint64
		Links     []int // attributes: a result and a value each
	}
	var native, limited result
	one, two := k.uuid(), k.devices[1].UUID
	cmd := k.command(ctx, nil, k.argv("kernels.ptx", "peers")...)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+one+","+two)
	p, err := begin(cmd)
	if err == nil {
		err = p.result(&native)
	}
	if err != nil {
		return err
	}
	mem := ",mem-mib=" + strconv.Itoa(k.limit())
	if err := k.program(ctx, share{"--device", one + mem, "--device", two + mem}, &limited, "peers"); err != nil {
		return err
	}
	r.Set("can_access", native.CanAccess == 1)
	r.Set("charged_mib", fmt.Sprint(limited.Charged[0]/mib, " ", limited.Charged[1]/mib))
	if native.Right != 1 || limited.Right != 1 || native.CanAccess != limited.CanAccess || !slices.Equal(native.Links, limited.Links) {
		return fmt.Errorf("natively %+v, limited %+v", native, limited)
	}
	if limited.Charged[0] != 32*mib || limited.Charged[1] != 64*mib {
		return fmt.Errorf("the devices are charged %d and %d bytes, want 32 and 64 MiB", limited.Charged[0], limited.Charged[1])
	}
	return nil
}
