// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/nri-plugin/mode/mps"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// On a machine whose kernel module is not loaded the agent's inventory says that, with
// every driver's NVML.
func TestInventoryWithoutAKernelModule(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		_, lib, err := inventory.Open(inventory.Options{Library: filepath.Join(d.lib(), "libnvidia-ml.so.1")})
		if err == nil {
			lib.Shutdown()
			t.Fatal("it opens")
		}
		if !strings.Contains(err.Error(), "kernel module is not loaded") {
			t.Error(err)
		}
	})
}

const uuid = "GPU-4e34a15c-e4df-475a-84f0-864d4ce2b788"

// library is what of NVML is not asked.
type library interface{ device.Library }

// node is one that believes it has a device: the real daemon's servers see none.
type node struct {
	library
	driver string
	mode   device.ComputeMode
}

func (n *node) Snapshot() (device.Snapshot, bool) {
	return device.Snapshot{
		Driver:  v1alpha1.DriverStatus{Version: n.driver, MemoryLimitsReason: "driver " + n.driver + " has none"},
		Devices: []v1alpha1.DeviceStatus{{UUID: uuid, Mem: 81920, MIG: v1alpha1.MIGDisabled}},
	}, true
}
func (n *node) Library() (device.Library, error)                    { return n, nil }
func (n *node) Refresh() error                                      { return nil }
func (n *node) Processes(string) ([]int, error)                     { return nil, nil }
func (n *node) ComputeMode(string) (device.ComputeMode, error)      { return n.mode, nil }
func (n *node) SetComputeMode(_ string, m device.ComputeMode) error { n.mode = m; return nil }

// The agent starts the real daemon of each driver with a /dev/shm of its own, talks to it,
// reads back what it sets, and ends it; without a GPU no server comes, and it says so and
// where to look.
func TestAgentAndTheRealDaemon(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	each(t, func(t *testing.T, d driver) {
		t.Parallel()
		dir := simgpu.ShortDir(t)
		program := &mps.Program{Root: "/", Path: d.control(), Libraries: d.lib()}
		l := &v1alpha1.SliceLedger{}
		l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: uuid, Core: 100, Mem: 81920, Slices: []v1alpha1.Slice{
			{Pod: "a", Owner: "team/a", Ctr: "main", Core: 30, Mem: 20328, Mode: v1alpha1.ModeMPS}}}}
		n := &node{driver: d.version}
		agent := mps.New(dir, mps.Node{
			Devices: n, Index: func() *ledger.Index { return ledger.NewIndex(l) }, Driver: &driverlimit.Limit{Devices: n},
			Find:       func() (mps.Daemons, error) { return program, nil },
			Containers: func() ([]mode.Container, bool) { return nil, true },
			Root:       mps.Root, Warn: func(mode.Container, string, string) {},
		})
		err := agent.Prepare(mode.Container{Pod: "a", Owner: "team/a", Name: "main", ID: "id",
			Grants: ledger.NewIndex(l).Grants(ledger.Key{Pod: "a", Container: "main"})})
		if err == nil || !strings.Contains(err.Error(), "for its server to be active") || !strings.Contains(err.Error(), "see its log") {
			t.Errorf("the agent says %v, want that the server does not come", err)
		}
		folders, _ := filepath.Glob(filepath.Join(dir, "GPU-*"))
		if len(folders) != 1 {
			t.Fatalf("folders %q", folders)
		}
		all, err := program.Processes(folders[0])
		if len(all) != 1 || all[0].Server || err != nil {
			t.Fatalf("processes %+v, %v; want the daemon", all, err)
		}
		if is, err := program.Shares(folders[0], all[0].PID); !is || err != nil {
			t.Errorf("the daemon has another /dev/shm: %v", err)
		}
		if own := mounts(t, all[0].PID, mps.SharedMemory); !strings.Contains(own, "vernier-mps") {
			t.Errorf("the daemon has %q", own)
		}
		if ours := mounts(t, os.Getpid(), mps.SharedMemory); strings.Contains(ours, "vernier-mps") {
			t.Errorf("everybody has %q", ours)
		}
		for _, exchange := range [][2]string{
			{"set_default_active_thread_percentage 30", "30.0"}, {"set_default_device_pinned_mem_limit 0 20328M", ""},
			{"get_default_active_thread_percentage", "30.0"}, {"get_default_device_pinned_mem_limit 0", "19G"},
		} {
			if said, err := program.Ask(folders[0], exchange[0], answerTime); err != nil || strings.TrimSpace(said) != exchange[1] {
				t.Errorf("%s: %q, %v; want %q", exchange[0], said, err, exchange[1])
			}
		}
		if log, _ := os.ReadFile(filepath.Join(folders[0], "log", "daemon.log")); !strings.Contains(string(log), "exited with status 1") {
			t.Errorf("the log does not say why: %s", log)
		} else if !strings.Contains(string(log), "Removed Shm file at") {
			t.Errorf("the daemon does not look after its servers' files in /dev/shm: %s", log)
		}
		l.Spec.Devices = nil
		must.Report(t, agent.Settle())
		if all, err := program.Processes(folders[0]); len(all) != 0 || err != nil {
			t.Errorf("processes %+v, %v are left", all, err)
		}
		if left := mounts(t, os.Getpid(), filepath.Join(folders[0], "shm")); left != "" {
			t.Errorf("%q is left", left)
		}
	})
}

// mounts are what a process has mounted at a place.
func mounts(t *testing.T, pid int, at string) string {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid)))(t)
	found := ""
	for line := range strings.Lines(string(text)) {
		if strings.Fields(line)[4] == at {
			found += line
		}
	}
	return found
}
