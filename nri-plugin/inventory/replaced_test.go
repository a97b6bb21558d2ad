// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/simgpu"
)

// A device that has fallen off the bus before the agent was started cannot say who
// it is: the others are served, and it is once it is back.
func TestLostFromTheStart(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 3}}})
	must(t, s.Lose("1"))
	inv := open(t, s, Options{})
	got := scan(t, inv)
	if len(got.Devices) != 2 || got.Devices[0].Index != 0 || got.Devices[1].Index != 2 || len(got.Usable()) != 2 {
		t.Errorf("devices %+v, want those of index 0 and 2", got.Devices)
	}
	if len(got.Unseen) != 1 || !strings.Contains(got.Unseen[0], "device 1") {
		t.Errorf("unseen %q, want device 1", got.Unseen)
	}
	must(t, s.Xid(got.Devices[1].UUID, 48))
	event(t, inv)
	must(t, s.Recover("1"))
	if got = scan(t, inv); len(got.Devices) != 3 || len(got.Unseen) != 0 || !got.Devices[1].Healthy || got.Devices[2].Healthy {
		t.Errorf("recovered: %+v", got)
	}
	must(t, s.Xid("1", 48))
	event(t, inv)
	if got = scan(t, inv); got.Devices[1].Healthy {
		t.Error("its events are not heard")
	}
	for _, device := range []string{"0", "1", "2"} {
		must(t, s.Lose(device))
	}
	if _, err := open(t, s, Options{}).Scan(); err == nil {
		t.Error("a node whose devices are all lost is looked at without an error")
	}
}

// Another device in the place of a known one, another library file and another kernel
// module each need a process that loads NVML anew.
func TestReplaced(t *testing.T) {
	for name, test := range map[string]struct {
		cause func(t *testing.T, s *simgpu.Sim, library string)
		says  string
	}{
		"device": {func(t *testing.T, s *simgpu.Sim, _ string) { must(t, s.Replace("1")) }, "took the place of GPU-"},
		"library": {func(t *testing.T, _ *simgpu.Sim, library string) {
			must(t, os.Rename(library, library+".old"))
			copyFile(t, library+".old", library)
		}, "was replaced"},
		"library gone": {func(t *testing.T, _ *simgpu.Sim, library string) { must(t, os.Remove(library)) }, "was replaced"},
		"module":       {func(t *testing.T, s *simgpu.Sim, _ string) { must(t, s.Module("616.1")) }, "kernel module"},
	} {
		t.Run(name, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
			library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
			copyFile(t, s.NVML(), library)
			inv, lib, err := Open(Options{Library: library})
			must(t, err)
			t.Cleanup(func() { lib.Shutdown() })
			scan(t, inv)
			test.cause(t, s, library)
			if _, err := inv.Scan(); !errors.Is(err, device.ErrReplaced) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %v that says %q", err, device.ErrReplaced, test.says)
			}
		})
	}
}

// A library beside another version of the kernel module is not opened, and what to do
// is said.
func TestMismatch(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
	must(t, s.Module("616.1"))
	if _, _, err := Open(Options{Library: s.NVML()}); !errors.Is(err, device.ErrMismatch) || !strings.Contains(err.Error(), "version mismatch") {
		t.Errorf("%v, want %v", err, device.ErrMismatch)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, text, 0o755))
}
