// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// TestLookups: however a program finds the driver's functions, it finds ours for
// those of the table, the driver's for the others, and nothing where there was
// nothing before.
func TestLookups(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	lookups := func(preload string) []string {
		out, err := c.command(preload, "lookup").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	native, limited := lookups(""), lookups("libvgpu-test.so")
	if len(native) < 20 || len(native) != len(limited) {
		t.Fatalf("%d lookups natively, %d limited", len(native), len(limited))
	}
	untouched := []string{"not-in-table", "cuDeviceGetName"}
	for i, line := range native {
		want := line
		if rest, driver := strings.CutSuffix(line, " driver"); driver && !strings.Contains(line, untouched[0]) && !strings.Contains(line, untouched[1]) {
			want = rest + " ours"
		}
		// The simulated driver has one address for both kinds of default stream;
		// ours differ.
		got := limited[i]
		if strings.HasPrefix(line, "proc:cuLaunchKernel") {
			want = got
			symbol := "=cuLaunchKernel ours"
			if strings.HasPrefix(line, "proc:cuLaunchKernel:12000:2") {
				symbol = "=cuLaunchKernel_ptsz ours"
			}
			if !strings.HasSuffix(got, symbol) {
				t.Errorf("%s, want it to end in %s", got, symbol)
			}
		}
		if got != want {
			t.Errorf("%s, want %s (natively %s)", got, want, line)
		}
	}
}

// TestLookupsOfOthers: a library that is preloaded before ours, and has a function of
// the table, is found as it is without ours.
func TestLookupsOfOthers(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	before := filepath.Join(c.dir, "before.so")
	must.Do(t, os.WriteFile(before+".c", []byte("int cuArrayDestroy(void *a) { return a != 0; }\n"), 0o600))
	run(t, compiler(), "-shared", "-fPIC", "-o", before, before+".c")
	own := func(preload string) string {
		cmd := c.command("", "lookup")
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+preload)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var lines []string
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "own-") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	native, limited := own(before), own(before+":"+filepath.Join(c.built.dir, "libvgpu-test.so"))
	if !strings.Contains(native, "own-next other") || limited != native {
		t.Errorf("limited:\n%snatively:\n%s", limited, native)
	}
}

// TestNVML: NVML shows the slice as the device and the container's processes, in
// a process that uses no CUDA, before and after the library is loaded anew.
func TestNVML(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p, q := c.start(), c.start()
	p.want("alloc 1 30", ok)
	q.want("alloc 1 20", ok)
	dead := c.start()
	dead.want("alloc 1 10", ok)
	dead.kill()
	views := func() string {
		out, err := c.command("libvgpu-test.so", "views", "again").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	once := fmt.Sprintf("memory 0 %d %d %d\nmemory_v2 0 %d %d %d\ncount 7 2\nprocesses 0 2\nprocess %d %d\nprocess %d %d\nbusy 6 0\nbusy_info 6 0\n",
		100*mib, 50*mib, 50*mib, 100*mib, 50*mib, 50*mib, p.cmd.Process.Pid, 30*mib, q.cmd.Process.Pid, 20*mib)
	if got := views(); got != once+once {
		t.Errorf("NVML shows\n%swant, twice,\n%s", got, once)
	}

	// Without valid limits the device's own figures are not shown either.
	must.Do(t, layout.CreateCounters(c.dir+"/counters", 2))
	if got := views(); !strings.Contains(got, "memory 4 ") || !strings.Contains(got, "processes 4 ") {
		t.Errorf("NVML shows\n%swant no permission (4)", got)
	}
}

// TestNVMLUtilization: how busy other containers' processes are is not shown.
func TestNVMLUtilization(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	for _, in := range []*container{c, c.neighbour(share{0, 100})} {
		p := in.start()
		p.want("stream 1", ok)
		p.want("launch 1 3600000000 1", ok) // an hour, of which the device is busy also while the process has no CPU
	}
	own := c.usage().Processes[0].HostPID
	want := fmt.Sprintf("busy 0 1 %d\nbusy_info 0 1 %d\n", own, own)
	for { // until the driver's sampling has seen both
		native, err := c.command("", "views").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, native)
		}
		if !strings.Contains(string(native), "busy 0 2 ") || !strings.Contains(string(native), "busy_info 0 2 ") {
			continue
		}
		limited, err := c.command("libvgpu-test.so", "views").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, limited)
		}
		if !strings.HasSuffix(string(limited), want) {
			t.Errorf("NVML shows\n%swant at its end\n%s", limited, want)
		}
		return
	}
}

// TestUnloading: a driver library whose functions have been handed out stays
// loaded, whoever closes it; the simulated one always does, so this is another.
func TestUnloading(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	source := "int nvmlDeviceGetMemoryInfo(void *d, void *m) { (void)d; (void)m; return 77; }\n"
	must.Do(t, os.WriteFile(filepath.Join(c.dir, "nvml.c"), []byte(source), 0o600))
	run(t, compiler(), "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", filepath.Join(c.dir, "libnvidia-ml.so.1"), filepath.Join(c.dir, "nvml.c"))
	cmd := c.command("libvgpu-test.so", "unload")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+c.dir)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "77\n" {
		t.Errorf("%v: %s, want the library's answer, 77", err, out)
	}
}

// TestAudited: programs start and are limited where LD_AUDIT names a library that looks on.
func TestAudited(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	audit := filepath.Join(c.dir, "audit.so")
	must.Do(t, os.WriteFile(audit+".c", []byte("unsigned la_version(unsigned version) { return version; }\n"), 0o600))
	run(t, compiler(), "-shared", "-fPIC", "-o", audit, audit+".c")
	p := c.prepare("libvgpu-test.so")
	p.cmd.Env = append(p.cmd.Env, "LD_AUDIT="+audit)
	p.begin()
	p.do("init", "primary 0 0", "current 0", "alloc 1 100")
	p.want("alloc 2 1", outOfMemory)
}
