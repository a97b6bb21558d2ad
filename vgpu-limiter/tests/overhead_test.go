// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// TestContextsAreCharged: what the driver takes for a context counts, from the
// container's first one on, and goes with the context.
func TestContextsAreCharged(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 40, share{0, 100})
	p := c.start()
	p.wantUsed(40, 100)
	p.want("primary 9 0", ok) // the same one again
	p.wantUsed(40, 100)
	p.want("context 1 0", ok)
	p.wantUsed(80, 100)
	p.want("context 2 0", outOfMemory)
	c.wantHeld(80)
	p.do("destroy_context 1", "current 0")
	p.wantUsed(40, 100)
	p.do("reset_primary 0", "current 0")
	p.wantUsed(40, 100)
	p.do("release_primary 0", "release_primary 0")
	if u := c.usage(); u.Devices[0].UsedBytes != 0 || c.held(0) != 0 {
		t.Errorf("after the last context the counters say %+v, the device %d MiB", u.Devices, c.held(0))
	}
}

// TestContextThatDoesNotFit: the first process learns what a context takes; for
// the others one that doesn't fit never reaches the device.
func TestContextThatDoesNotFit(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 40, share{0, 100})
	p, q := c.start(), c.start()
	q.wantUsed(80, 100)
	r := c.startRaw("libvgpu-test.so")
	r.want("init", ok)
	r.want("primary 0 0", outOfMemory)
	r.want("context 1 0", outOfMemory)
	c.wantHeld(80)
	p.kill()
	r.do("primary 0 0", "current 0")
	r.wantUsed(80, 100)

	small := c.neighbour(share{0, 39}) // its first context: tried, and undone
	s := small.startRaw("libvgpu-test.so")
	s.want("init", ok)
	s.want("primary 0 0", outOfMemory)
	if u := small.usage(); u.Devices[0].UsedBytes != 0 || c.held(0) != 80 {
		t.Errorf("counters %+v, the device holds %d MiB, want 80", u.Devices, c.held(0))
	}
}

// TestContextsWithoutNVML: where NVML isn't there nobody knows what a context takes.
func TestContextsWithoutNVML(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 40, share{0, 100})
	c.sim = t.TempDir()
	b := must.Get(build())(t)
	must.Do(t, os.Symlink(filepath.Join(b.sim, "libcuda.so.1"), filepath.Join(c.sim, "libcuda.so.1")))
	p := c.start()
	p.wantUsed(0, 100)
	p.do("module 1 5", "alloc 1 100")
	p.wantUsed(100, 100)
}

// TestContextsByHostPIDs: where NVML knows processes by PIDs that they don't have, each
// finds itself as the one that has come with its first context; the container's first
// one finds what a context takes for all of them.
func TestContextsByHostPIDs(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 40, share{0, 200})
	limits := must.Get(layout.ReadFile(filepath.Join(c.dir, "limits")))(t)
	c.ctl("create", "--context-mib", "40", "--pids", "host", "--gpu", "A100-SXM4-80GB,count=1")
	neighbour := c.neighbour(share{0, 100})
	other := neighbour.start()
	other.wantUsed(40, 100)
	if limits.Devices[0].UUID != c.status(0, "uuid") {
		t.Fatal("another device")
	}
	p := c.start()
	p.wantUsed(40, 200)
	p.want("module 1 30", ok) // it knows itself
	p.wantUsed(70, 200)
	q := c.start()
	q.wantUsed(110, 200)
	q.want("module 1 20", ok) // so does the next one
	q.wantUsed(130, 200)
	q.do("unload_module 1", "context 1 0")
	q.wantUsed(150, 200)
	p.want("unload_module 1", ok)
	q.do("destroy_context 1", "current 0")
	q.wantUsed(80, 200)
	if held := c.held(0); held != 120 { // the neighbour's too
		t.Errorf("the device holds %d MiB, want 120", held)
	}
	q.want("context 2 0", ok)
	r := c.startRaw("libvgpu-test.so")
	r.do("init", "primary 0 0", "context 1 0")
	r.want("context 2 0", outOfMemory)
}

// TestModules: code and variables count as long as they are loaded; what doesn't
// fit is unloaded again.
func TestModules(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 10, share{0, 100})
	p := c.start()
	p.want("module 1 30", ok)
	p.wantUsed(40, 100)
	p.want("library 1 30", ok)
	p.wantUsed(70, 100)
	p.want("module 2 31", outOfMemory)
	p.want("library 2 31", outOfMemory)
	p.wantUsed(70, 100)
	c.wantHeld(70)
	p.want("unload_module 1", ok)
	p.wantUsed(40, 100)
	p.want("unload_library 1", ok)
	p.wantUsed(10, 100)
	p.do("context 1 0", "module 3 30")
	p.wantUsed(50, 100)
	p.do("destroy_context 1", "current 0")
	p.wantUsed(10, 100)
	c.wantHeld(10)
}

// TestLazyCode: code that the driver loads when its function is asked for is charged
// then, to its module, and refused if it doesn't fit. What it loads at a launch is found
// with the next function or module.
func TestLazyCode(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 10, share{0, 100})
	p := c.start()
	p.do("lazy_module 1 30", "lazy_library 1 20", "lazy_library 2 5", "lazy_library 4 5")
	p.wantUsed(10, 100)
	p.do("function 1", "function 1")
	p.wantUsed(40, 100)
	p.want("library_function 1 0", ok)
	p.wantUsed(60, 100)
	p.want("library_function 2 1", ok)
	p.wantUsed(65, 100)
	p.want("library_function 4 2", ok)
	p.wantUsed(70, 100)
	p.do("unload_library 4", "unload_module 1")
	p.wantUsed(35, 100)
	p.want("lazy_module 3 70", ok)
	p.want("function 3", outOfMemory)
	p.wantUsed(35, 100)
	p.do("unload_module 3", "unload_library 1", "unload_library 2")
	p.wantUsed(10, 100)
	p.do("lazy_library 3 30", "library_launch 3")
	p.wantUsed(10, 100)
	p.want("module 1 1", ok)
	p.wantUsed(41, 100)
	c.wantHeld(41)
}

// TestModulesPastTheAPI: a module that was loaded by the driver's private tables, as the
// CUDA runtime 11 does, is charged when something of it is asked for, once, and refused
// then if it doesn't fit; unloading it uncharges.
func TestModulesPastTheAPI(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 10, share{0, 100})
	p := c.start()
	p.do("private_module 1 30", "private_module 2 20")
	p.want("function 1", ok) // it is found with the other's
	p.wantUsed(60, 100)
	p.want("global 2", ok)
	p.wantUsed(60, 100)
	p.do("unload_module 2", "unload_module 1")
	p.wantUsed(10, 100)
	p.do("private_module 1 30", "global 1")
	p.wantUsed(40, 100)
	p.want("unload_module 1", ok)
	p.wantUsed(10, 100)
	p.want("private_module 1 91", ok)
	p.want("function 1", outOfMemory)
	p.want("global 1", outOfMemory)
	p.want("unload_module 1", ok)
	p.wantUsed(10, 100)
}

// TestLibraries: what a library takes is charged in each context in which it is, on
// that context's device, until one of the two goes.
func TestLibraries(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100}, share{0, 200})
	p := c.start()
	used := func(context, mib, of int) {
		t.Helper()
		p.want(fmt.Sprint("current ", context), ok)
		p.wantUsed(mib, of)
	}
	p.want("primary 1 1", ok)
	p.want("library 1 30", ok) // in device 0's
	p.do("current 1", "library_global 1")
	used(0, 30, 100)
	used(1, 30, 200)
	p.want("library_function 1 0", ok)
	p.want("context 2 1", ok) // and current
	p.want("library_function 1 1", ok)
	p.wantUsed(60, 200)
	p.want("destroy_context 2", ok)
	used(1, 30, 200)
	p.want("reset_primary 1", ok)
	p.wantUsed(0, 200)
	p.want("library_function 1 1", ok)
	p.wantUsed(30, 200)
	p.want("unload_library 1", ok)
	p.wantUsed(0, 200)
	used(0, 0, 100)
	// More contexts than a library has entries for: then the context has it.
	p.want("library 2 2", ok)
	for i := 2; i < 12; i++ {
		p.do(fmt.Sprintf("context %d 0", i), "library_global 2")
	}
	p.wantUsed(22, 100)
	p.want("unload_library 2", ok)
	for i := 2; i < 12; i++ {
		p.want(fmt.Sprint("destroy_context ", i), ok)
	}
	used(0, 0, 100)
	if held := c.held(0) + c.held(1); held != 0 {
		t.Errorf("the devices hold %d MiB, want none", held)
	}
}

// TestModulesAmongThreads: modules that are loaded at the same time are counted once;
// what is missed of those that are loaded while other threads allocate is never too
// much, and found with the next one.
func TestModulesAmongThreads(t *testing.T) {
	t.Parallel()
	c := newContainerOn(t, 10, share{0, 200})
	p := c.start()
	p.want("load_at_once 4", ok)
	p.wantUsed(50, 200)
	p.want("load_beside 40", ok)
	if info := p.call("info"); info[2]-info[1] > 90*mib {
		t.Errorf("%d MiB are charged, want at most 90", (info[2]-info[1])/mib)
	}
	p.want("module 1 1", ok)
	p.wantUsed(91, 200)
	c.wantHeld(91)
}
