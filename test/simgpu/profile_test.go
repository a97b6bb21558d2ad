// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

// h100 is what one in a virtual machine was seen to do; TestUtilisation is of it too.
const h100 = "h100-vm"

func TestProfileTakesTimeForCalls(t *testing.T) {
	s := New(t, Config{Profile: h100, GPUs: []GPU{{Model: H100}}})
	p := &program{lines: run(t, s, "cudabench", "1")}
	for call, ns := range map[string]uint64{"cuLaunchKernel/no-time": 4100, "cuEventRecord": 1400, "cuEventQuery": 300,
		"cuMemGetInfo": 7700, "cuMemAlloc+cuMemFree": 2300, "cuMemAllocAsync+cuMemFreeAsync": 1600} {
		// Nothing bounds what a busy machine takes.
		if got := p.number(t, "call="+call+" ns="); got < ns {
			t.Errorf("%s takes %d ns, want %d at least", call, got, ns)
		}
	}
	lib := open(t, s)
	sample := value(lib.GpmSampleAlloc())(t)
	defer sample.Free()
	began := time.Now()
	ok(t, device(t, lib, 0).GpmSampleGet(sample))
	if took := time.Since(began); took < 3600*time.Microsecond {
		t.Errorf("a sample of GPM takes %v, want 3.6 ms at least", took)
	}
}

// The memory of a killed process is free a while after the first look at what is left.
func TestProfileFreesKilledMemoryLater(t *testing.T) {
	s := New(t, Config{Profile: h100, GPUs: []GPU{{Model: H100}}})
	used := func() uint64 {
		st := must.Get(s.Status())(t)
		return st.Devices[0].UsedBytes >> 20
	}
	kept := false
	// A busy machine may take longer for that look, but not always.
	for tries := 0; tries < 20 && !kept; tries++ {
		p := holding(t, s, "", "--alloc", "1000")
		if got := used(); got != 1518 {
			t.Fatalf("%d MiB used, want 1000 and 518 for the context", got)
		}
		p.kill(t)
		kept = used() == 1518
		await(t, "the memory to be free", func() bool { return used() == 0 })
	}
	if !kept {
		t.Error("a killed process's memory is free at once")
	}
	run(t, s, "cudademo", "--alloc", "1000")
	if got := used(); got != 0 {
		t.Errorf("%d MiB used after a process that ended in order", got)
	}
}

func TestProfileOfMPS(t *testing.T) {
	m := serve(t, New(t, Config{Profile: h100, GPUs: []GPU{{Model: H100}}}), []string{
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G"})
	p := &program{lines: run(t, m.Sim, "cudademo", "--alloc-until-fail")}
	p.has(t, "multiprocessors=38") // 28.8 percent of 132
	p.has(t, "allocated mib=1880 free_mib=0")
}

func TestProfileGivesWay(t *testing.T) {
	for _, c := range []struct {
		config Config
		driver string
		free   string
	}{
		{Config{Profile: h100}, "580.159.04", "free_mib=80545"},
		{Config{Profile: h100, Driver: Driver555, ContextMiB: 20}, Driver555, "free_mib=81043"},
		{Config{}, DriverNewest, "free_mib=81063"},
	} {
		c.config.GPUs = []GPU{{Model: H100}}
		s := New(t, c.config)
		st := must.Get(s.Status())(t)
		if st.Driver != c.driver {
			t.Errorf("%+v: driver %s, want %s", c.config, st.Driver, c.driver)
		}
		holding(t, s, "", "--alloc", "100").has(t, c.free)
	}
	_, err := Create(New(t, Config{}).Bin, filepath.Join(t.TempDir(), "state"), Config{Profile: "h200"})
	if err == nil || !strings.Contains(err.Error(), "there is "+h100) {
		t.Errorf("an unknown profile: %v", err)
	}
}
