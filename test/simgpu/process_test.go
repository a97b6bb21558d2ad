// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

func TestProcessesAndTheirMemory(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100, Count: 2}}})
	d := device(t, open(t, s), 0)
	a := holding(t, s, "", "--alloc", "1000")
	b := holding(t, s, "", "--alloc", "500")
	b.has(t, "free_mib=80313") // 81,313 less the first one's
	infos := value(d.GetComputeRunningProcesses())(t)
	got := map[int]uint64{}
	for _, i := range infos {
		got[int(i.Pid)] = i.UsedGpuMemory >> 20
	}
	if len(got) != 2 || got[a.cmd.Process.Pid] != 1000 || got[b.cmd.Process.Pid] != 500 {
		t.Errorf("processes %v, want %d: 1000, %d: 500", got, a.cmd.Process.Pid, b.cmd.Process.Pid)
	}
	memory := value(d.GetMemoryInfo_v2())(t)
	if memory.Used != 1500<<20 {
		t.Errorf("used %d", memory.Used)
	}
	v1, ret := d.GetMemoryInfo()
	ok(t, ret)
	if v1.Used != memory.Used+memory.Reserved {
		t.Errorf("the first version counts reserved memory as used: %d", v1.Used)
	}
	// A killed process frees its slot and memory by its death alone.
	a.kill(t)
	memory = value(d.GetMemoryInfo_v2())(t)
	if memory.Used != 500<<20 {
		t.Errorf("used after a kill %d", memory.Used)
	}
}

// A process's percent is its part of the device's time, or, as an H100 told it, of the
// time in which it had work.
func TestUtilisation(t *testing.T) {
	for profile, percent := range map[string]uint32{"": 50, "h100-vm": 100} {
		t.Run(profile, func(t *testing.T) { utilisation(t, profile, percent) })
	}
}

func utilisation(t *testing.T, profile string, percent uint32) {
	s := New(t, Config{Profile: profile, GPUs: []GPU{{Model: A100, Count: 2}}})
	lib := open(t, s)
	d := device(t, lib, 0)
	_, ret := d.GetProcessUtilization(0)
	want(t, ret, nvml.ERROR_NOT_FOUND) // nobody was busy
	a, b := launch(t, s, nil, "unit/cuda", "busy"), launch(t, s, nil, "unit/cuda", "busy")
	if !a.await() || !b.await() {
		t.Fatalf("ended early: %q %q", a.lines, b.lines)
	}
	// The window is the last second, so it fills within one.
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for full, polls := false, 0; !full; <-poll.C {
		rates := value(d.GetUtilizationRates())(t)
		samples, _ := d.GetProcessUtilization(0)
		if polls++; polls == 3000 {
			t.Fatalf("after a minute: %+v %+v", rates, samples)
		}
		full = rates.Gpu == 100 && len(samples) == 2 && samples[0].SmUtil == percent && samples[1].SmUtil == percent
	}
	rates := value(device(t, lib, 1).GetUtilizationRates())(t)
	if rates.Gpu != 0 {
		t.Errorf("the other device is %d %% busy", rates.Gpu)
	}
	samples, ret := d.GetProcessUtilization(0)
	ok(t, ret)
	_, ret = d.GetProcessUtilization(samples[0].TimeStamp + 1e9)
	want(t, ret, nvml.ERROR_NOT_FOUND) // nothing newer
}

func TestExclusiveProcessMode(t *testing.T) {
	needRoot(t, "the compute mode needs")
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	d := device(t, open(t, s), 0)
	ok(t, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	p := holding(t, s, "", "--alloc", "1")
	second := launch(t, s, nil, "cudademo")
	second.await()
	second.has(t, "error=CUDA_ERROR_DEVICE_UNAVAILABLE")
	p.kill(t)
	holding(t, s, "", "--alloc", "1").has(t, "ok=1")
}

// A container has its own PID namespace; the host sees the host's PIDs, and the
// container none that are not its own.
func TestPIDsAreTheReadersOwn(t *testing.T) {
	needRoot(t, "a PID namespace needs")
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	d := device(t, open(t, s), 0)
	outside := holding(t, s, "", "--alloc", "1")
	inside := start(t, s, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, "--alloc", "2")
	inside.has(t, "hold pid=1")
	infos := value(d.GetComputeRunningProcesses())(t)
	got := map[int]uint64{}
	for _, i := range infos {
		got[int(i.Pid)] = i.UsedGpuMemory >> 20
	}
	if len(got) != 2 || got[outside.cmd.Process.Pid] != 1 || got[inside.cmd.Process.Pid] != 2 {
		t.Errorf("processes %v", got)
	}
	status := exec.Command(s.Program("simgpuctl"), "status")
	status.Env = s.Env()
	status.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out := must.Get(status.Output())(t)
	if n := strings.Count(string(out), "pid=-1 "); n != 2 {
		t.Errorf("%d of 2 processes are outside the namespace:\n%s", n, out)
	}
}

func TestTwoProcessesCannotHoldMoreThanTheDevice(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: T4}}})
	all := holding(t, s, "", "--alloc-until-fail")
	all.has(t, "allocated mib=14911 free_mib=0")
	none := holding(t, s, "", "--alloc-until-fail")
	none.has(t, "error=CUDA_ERROR_OUT_OF_MEMORY")
	none.has(t, "allocated mib=0 free_mib=0")
	all.kill(t)
	holding(t, s, "", "--alloc", "14911").has(t, "ok=1")
}

// Invariant 1 below the ledger: processes that race for the last memory never
// hold more than there is, and what the killed ones held is there again.
func TestRacingProcessesShareExactlyTheDevice(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: T4}}})
	racers := make([]*program, 6)
	done := make(chan struct{})
	for i := range racers {
		racers[i] = launch(t, s, nil, "cudademo", "--alloc-until-fail", "--hold")
		go func() {
			racers[i].await()
			done <- struct{}{}
		}()
	}
	for range racers {
		<-done
	}
	sum := uint64(0)
	for _, r := range racers {
		sum += r.number(t, "allocated mib=")
	}
	if sum > 14911 {
		t.Fatalf("%d MiB held of 14911", sum)
	}
	sum += holding(t, s, "", "--alloc-until-fail").number(t, "allocated mib=")
	if sum != 14911 {
		t.Errorf("%d MiB held of 14911 when nobody races any more", sum)
	}
	for _, r := range racers[:3] {
		sum -= r.number(t, "allocated mib=")
		r.kill(t)
	}
	sum += holding(t, s, "", "--alloc-until-fail").number(t, "allocated mib=")
	if sum != 14911 {
		t.Errorf("%d MiB held of 14911 after three were killed", sum)
	}
}

// cgroup2 makes a child of the unified hierarchy, which on a hybrid machine
// lies beside the first version's.
func cgroup2(t *testing.T, parent, name string) string {
	t.Helper()
	if parent == "" {
		for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			var fs unix.Statfs_t
			if unix.Statfs(mount, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
				parent = mount
			}
		}
	}
	if parent == "" || os.Geteuid() != 0 {
		t.Skip("needs root and a cgroup2 file system")
	}
	dir, err := os.MkdirTemp(parent, "simgpu-"+name+"-")
	if err != nil {
		t.Skipf("cannot make a cgroup: %v", err)
	}
	t.Cleanup(func() { unix.Rmdir(dir) })
	return dir
}

func TestDriverMemoryLimits(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: H100, Count: 2}}})
	lib := open(t, s)
	d, other := device(t, lib, 0), device(t, lib, 1)
	pod := cgroup2(t, "", "pod")
	leaf := cgroup2(t, pod, "container")

	_, ret := d.GetMemoryLimits_v1(leaf)
	want(t, ret, nvml.ERROR_NOT_FOUND)
	ok(t, d.SetMemoryLimits_v1(leaf, 0, 1000<<20))
	got, ret := d.GetMemoryLimits_v1(leaf)
	ok(t, ret)
	if got.SoftLimit != 0 || got.HardLimit != 1000<<20 || got.CurrentUsed != 0 {
		t.Errorf("read back %+v", got)
	}
	got = value(other.GetMemoryLimits_v1(leaf))(t)
	if got.HardLimit != nvml.DEVICE_MEMORY_LIMIT_MAX {
		t.Errorf("the other device's limit: %d", got.HardLimit)
	}

	p := holding(t, s, leaf, "--alloc-until-fail")
	p.has(t, "allocated mib=1000 free_mib=0")
	got = value(d.GetMemoryLimits_v1(leaf))(t)
	if got.CurrentUsed != 1000<<20 {
		t.Errorf("used %d of the limit", got.CurrentUsed)
	}
	holding(t, s, "", "--alloc", "2000").has(t, "ok=1") // outside the cgroup
	holding(t, s, leaf, "--device", "1", "--alloc", "2000").has(t, "ok=1")
	p.kill(t)

	// A limit on the pod binds its containers together with their own.
	ok(t, d.SetMemoryLimits_v1(pod, 0, 600<<20))
	holding(t, s, leaf, "--alloc-until-fail").has(t, "allocated mib=600")
}

func TestLimitBindsProcessesThatRunAlready(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: H100}}})
	d := device(t, open(t, s), 0)
	leaf := cgroup2(t, "", "late")
	holding(t, s, leaf, "--alloc", "700")
	ok(t, d.SetMemoryLimits_v1(leaf, 0, 1000<<20))
	holding(t, s, leaf, "--alloc-until-fail").has(t, "allocated mib=300")
}

func TestMemoryLimitArguments(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	d := device(t, open(t, s), 0)
	dir := cgroup2(t, "", "arguments")
	tests := []struct {
		name       string
		path       string
		soft, hard uint64
		ret        nvml.Return
	}{
		{"soft over hard", dir, 2 << 20, 1 << 20, nvml.ERROR_INVALID_ARGUMENT},
		{"over the device", dir, 0, 81921 << 20, nvml.ERROR_INVALID_ARGUMENT},
		{"no such folder", filepath.Join(dir, "missing"), 0, 1 << 20, nvml.ERROR_OPERATING_SYSTEM},
		{"not a cgroup", t.TempDir(), 0, 1 << 20, nvml.ERROR_OPERATING_SYSTEM},
		{"empty path", "", 0, 1 << 20, nvml.ERROR_INVALID_ARGUMENT},
		{"cleared", dir, 0, nvml.DEVICE_MEMORY_LIMIT_MAX, nvml.SUCCESS},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want(t, d.SetMemoryLimits_v1(test.path, test.soft, test.hard), test.ret)
		})
	}
}

func TestRemovingTheCgroupClearsItsLimit(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	d := device(t, open(t, s), 0)
	dir := cgroup2(t, "", "gone")
	ok(t, d.SetMemoryLimits_v1(dir, 0, 1<<30))
	must.Do(t, unix.Rmdir(dir))
	next := cgroup2(t, "", "next")
	_, ret := d.GetMemoryLimits_v1(next)
	want(t, ret, nvml.ERROR_NOT_FOUND)
	st := must.Get(s.Status())(t)
	if len(st.Limits) != 0 {
		t.Errorf("limits left: %+v", st.Limits)
	}
}
