// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Compute modes, as CUDA and NVML number them.
const (
	modeProhibited = 2
	modeExclusive  = 3
)

// driverFacts is the first row: CUDA and NVML show the same devices, and one can be used.
func driverFacts(ctx context.Context, k *kit, r *row) error {
	var cuda struct {
		CUDA    int
		Devices []gpu
	}
	cmd := exec.CommandContext(ctx, k.path("kit-program"), k.path("kernels.ptx"), "info")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p, err := begin(cmd)
	if err == nil {
		err = p.result(&cuda)
	}
	if err != nil {
		return fmt.Errorf("%w; the kit needs NVIDIA's driver, and glibc 2.34 or newer (Ubuntu 22.04, Debian 12, RHEL 9)", err)
	}
	k.native = map[string]float64{}
	k.devices = cuda.Devices
	if len(k.devices) == 0 {
		return errors.New("CUDA shows no device")
	}
	if err := k.program(ctx, nil, &k.before, "nvml"); err != nil {
		return err
	}
	k.driver = k.before.Driver
	r.Set("driver", k.driver)
	r.Set("cuda", fmt.Sprintf("%d.%d", cuda.CUDA/1000, cuda.CUDA%1000/10))
	for i := range k.devices {
		d := &k.devices[i]
		at := slices.IndexFunc(k.before.Devices, func(n nvmlDevice) bool { return n.UUID == d.UUID })
		if at < 0 {
			return fmt.Errorf("NVML doesn't show CUDA's device %s", d.UUID)
		}
		n := k.before.Devices[at]
		d.MIG, d.UsedByOthers, d.OtherProcesses = n.MIG, n.Used, len(n.Processes)
		if n.ComputeMode != d.ComputeMode {
			return fmt.Errorf("%s: compute mode %d by CUDA, %d by NVML", d.UUID, d.ComputeMode, n.ComputeMode)
		}
	}
	d := k.devices[home]
	r.Set("device", d.Name)
	r.Set("total_mib", d.Total/mib)
	r.Set("free_mib", d.Free/mib)
	r.Set("others", d.OtherProcesses)
	unusable := ""
	switch {
	case d.MIG != 0:
		unusable = "the GPU is in MIG mode, which the limiter isn't for"
	case d.ComputeMode == modeProhibited || d.ComputeMode == modeExclusive:
		unusable = "the GPU's compute mode allows no two programs, and the kit doesn't change it"
	case k.limit() < 256:
		unusable = fmt.Sprintf("only %d MiB of the GPU are free", d.Free/mib)
	}
	if unusable != "" {
		k.devices = nil
		return skip(unusable)
	}
	var work struct {
		PerUS float64 `json:"iterations_per_us"`
	}
	if err := k.program(ctx, nil, &work, "calibrate"); err != nil {
		return err
	}
	k.perUS = work.PerUS
	return nil
}

// goCheck is one of the node agent's checks, a Go test that is packed as a program.
func goCheck(test string) func(context.Context, *kit, *row) error {
	return func(ctx context.Context, k *kit, r *row) error {
		if test == "TestNvidiaSMI" {
			if _, err := exec.LookPath("nvidia-smi"); err != nil {
				return skip("there is no nvidia-smi on this machine")
			}
		}
		// Not the device of the other rows alone: the node agent sees all.
		cmd := exec.CommandContext(ctx, k.path("gpu-checks"), "-test.v", "-test.run", "^"+test+"$")
		cmd.Dir = k.scratch
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		said, err := cmd.CombinedOutput()
		if bytes.Contains(said, []byte("--- SKIP")) {
			return skip(said)
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
		if !bytes.Contains(said, []byte("--- PASS: "+test)) {
			return fmt.Errorf("%s did not run: %s", test, said)
		}
		var facts []string
		for _, m := range regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: (.*)$`).FindAllSubmatch(said, -1) {
			facts = append(facts, string(m[1]))
		}
		r.Set("facts", strings.Join(facts, "\n"))
		return nil
	}
}

// views: programs see their slice as the device, in CUDA and NVML, and no process of others.
func views(ctx context.Context, k *kit, r *row) error {
	limit := uint64(k.limit()) * mib
	var cuda struct{ Devices []gpu }
	if err := k.program(ctx, memory(k.limit()), &cuda, "info"); err != nil {
		return err
	}
	var nvml facts
	if err := k.program(ctx, memory(k.limit()), &nvml, "nvml"); err != nil {
		return err
	}
	if len(cuda.Devices) != 1 || len(nvml.Devices) != 1 {
		return fmt.Errorf("CUDA shows %d devices and NVML %d, want the one that was given", len(cuda.Devices), len(nvml.Devices))
	}
	c, n := cuda.Devices[0], nvml.Devices[0]
	r.Set("context_mib", (limit-min(limit, c.Free))/mib)
	if c.Total != limit || c.Free > limit || n.Total != limit || n.Used > limit {
		return fmt.Errorf("with a limit of %d, CUDA shows total %d and free %d, NVML total %d and used %d", limit, c.Total, c.Free, n.Total, n.Used)
	}
	if len(n.Processes) != 0 {
		return fmt.Errorf("NVML shows %d processes to one that uses no CUDA and is alone", len(n.Processes))
	}
	return nil
}

// smiLimited: nvidia-smi within a share shows the share.
func smiLimited(ctx context.Context, k *kit, r *row) error {
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return skip("there is no nvidia-smi on this machine")
	}
	if k.shares != "" {
		smi = filepath.Base(smi) // CDI may have put it elsewhere
	}
	out, err := k.command(ctx, memory(k.limit()), smi, "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		return fmt.Errorf("nvidia-smi: %w: %s", err, out)
	}
	want := fmt.Sprintf("%s, %d", k.uuid(), k.limit())
	if got := strings.TrimSpace(string(out)); got != want {
		return fmt.Errorf("nvidia-smi shows %q, want %q", got, want)
	}
	table, err := k.command(ctx, memory(k.limit()), smi).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nvidia-smi: %w: %s", err, table)
	}
	r.Set("table", string(table))
	return nil
}

// mps: our own preparation of the multi-process service, in the compute mode as it is:
// the server's ceiling of multiprocessors and of memory binds its clients.
func mps(ctx context.Context, k *kit, r *row) error {
	control, err := exec.LookPath("nvidia-cuda-mps-control")
	if err != nil {
		return skip("there is no nvidia-cuda-mps-control on this machine")
	}
	if _, err := os.Stat("/tmp/nvidia-mps/control"); err == nil {
		return skip("an MPS daemon seems to run: /tmp/nvidia-mps/control is there")
	}
	pipe := filepath.Join(k.scratch, "mps")
	logs := filepath.Join(k.scratch, "mps-log")
	if err := errors.Join(os.Mkdir(pipe, 0o755), os.Mkdir(logs, 0o755)); err != nil {
		return err
	}
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + logs}
	daemon := k.command(ctx, nil, control, "-f")
	daemon.Env = append(daemon.Env, env...)
	d, err := begin(daemon)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(-daemon.Process.Pid, syscall.SIGKILL); _ = d.end() }()
	tell := func(what string) (string, error) {
		cmd := k.command(ctx, nil, control)
		cmd.Env, cmd.Stdin = append(cmd.Env, env...), strings.NewReader(what+"\n")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for {
		said, err := tell("get_default_active_thread_percentage")
		if err == nil && said != "" {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the MPS daemon does not answer: %w: %s: %s", err, said, d.errors.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
	for _, what := range []string{"set_default_active_thread_percentage 30", fmt.Sprintf("set_default_device_pinned_mem_limit 0 %dM", k.limit())} {
		if said, err := tell(what); err != nil {
			return fmt.Errorf("%s: %w: %s", what, err, said)
		}
	}
	client := func(into any, args ...string) error {
		cmd := k.command(ctx, nil, k.argv("kernels.ptx", args...)...)
		cmd.Env = append(cmd.Env, env...)
		p, err := begin(cmd)
		if err != nil {
			return err
		}
		return p.result(into)
	}
	var cuda struct{ Devices []gpu }
	if err := client(&cuda, "info"); err != nil {
		return err
	}
	var got struct {
		Held   uint64
		Result int
	}
	if err := client(&got, "processes", "1", fmt.Sprint(k.most())); err != nil {
		return err
	}
	var all struct{ Kinds []kind }
	if err := client(&all, "kinds"); err != nil {
		return err
	}
	servers, _ := tell("get_server_list")
	if said, err := tell("quit"); err != nil {
		r.Set("quit", said)
	}
	processors := 100 * float64(cuda.Devices[0].Processors) / float64(k.devices[home].Processors)
	r.Set("processors_percent", processors)
	r.Set("held_mib", got.Held/mib)
	r.Set("limit_mib", k.limit())
	switch {
	case servers == "":
		return errors.New("no server was started: the programs ran without MPS")
	case processors > 32:
		return fmt.Errorf("a client may use %.0f percent of the multiprocessors, with a ceiling of 30", processors)
	case got.Held > uint64(k.limit())*mib:
		return fmt.Errorf("a client holds %d MiB, with a limit of %d", got.Held/mib, k.limit())
	}
	return k.rightKinds(all.Kinds)
}

// untouched is the last row: the card is as it was.
func untouched(ctx context.Context, k *kit, r *row) error {
	var after facts
	if err := k.program(ctx, nil, &after, "nvml"); err != nil {
		return err
	}
	for i, was := range k.before.Devices {
		is := after.Devices[i]
		if is.MIG != was.MIG || is.ComputeMode != was.ComputeMode {
			return fmt.Errorf("%s: MIG mode and compute mode were %d and %d and are %d and %d", was.UUID, was.MIG, was.ComputeMode, is.MIG, is.ComputeMode)
		}
		if was.UUID == k.uuid() {
			r.Set("used_before_mib", was.Used/mib)
			r.Set("used_after_mib", is.Used/mib)
		}
	}
	return nil
}
