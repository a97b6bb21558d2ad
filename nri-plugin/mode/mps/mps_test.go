// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// A daemon comes with the first slice and goes with the last, and the device is then
// what it was.
func TestLife(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	if w.daemons.daemon == 0 || w.daemons.server == 0 || w.daemons.uuid != gpu || w.nvml.mode != device.ComputeExclusiveProcess {
		t.Fatalf("%+v, %+v", w.daemons, w.nvml)
	}
	if now, _ := w.Snapshot(); !now.Driver.MPS || !now.Devices[0].MPS {
		t.Errorf("the picture does not show it: %+v", now)
	}
	w.must(w.grant("b", 50, 512))
	if w.daemons.started != 1 {
		t.Errorf("started %d daemons", w.daemons.started)
	}
	c, adjust := w.container("a"), &api.ContainerAdjustment{}
	w.must(w.Inject(c, adjust))
	all, err := w.Apply(c, 1)
	w.must(err)
	if len(all) != 1 || all[0].Memory != v1alpha1.GuaranteeCooperative || all[0].Compute != v1alpha1.GuaranteeCooperative || !strings.Contains(all[0].Note, "largest slice") {
		t.Errorf("status %+v", all)
	}
	w.must(w.Ended(c))
	w.must(w.drop("a"))
	if w.daemons.daemon == 0 || w.nvml.mode != device.ComputeExclusiveProcess {
		t.Error("the daemon went with the first of two slices")
	}
	w.must(w.drop("b"))
	left, err := filepath.Glob(filepath.Join(w.dir, "GPU-*"))
	if w.daemons.daemon != 0 || w.daemons.server != 0 || w.daemons.memory != 0 || w.nvml.mode != device.ComputeDefault || len(left) > 0 || err != nil {
		t.Errorf("%+v, %+v, files %v", w.daemons, w.nvml, left)
	}
}

// What a container gets: its device, the sockets that clients need and none that takes
// commands, and its own limits; the server has those of the largest slice.
func TestInject(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.must(w.grant("b", 0, 512))
	adjust := &api.ContainerAdjustment{}
	w.must(w.Inject(w.container("a"), adjust))
	env := map[string]string{}
	for _, v := range adjust.GetEnv() {
		env[v.GetKey()] = v.GetValue()
	}
	if env["CUDA_MPS_PIPE_DIRECTORY"] != Folder || env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != "30" || env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "0=1024M" {
		t.Errorf("environment %v", env)
	}
	if cdi := adjust.GetCDIDevices(); len(cdi) != 1 || cdi[0].GetName() != "vernier.dev/gpu="+gpu {
		t.Errorf("devices %v", cdi)
	}
	mount := adjust.GetMounts()[0]
	if mount.GetDestination() != Folder || !slices.Contains(mount.GetOptions(), "ro") {
		t.Errorf("mount %v", mount)
	}
	names, err := os.ReadDir(mount.GetSource())
	if err != nil || len(names) != 1 || names[0].Name() != "control" {
		t.Errorf("the container sees %v, %v; want the clients' socket alone", names, err)
	}
	if shm := adjust.GetMounts()[1]; shm.GetDestination() != SharedMemory || shm.GetSource() != shared(w.files.folder(gpu)) || !slices.Contains(shm.GetOptions(), "rw") {
		t.Errorf("mount %v", shm)
	}
	// A slice without a quota of compute has all of it, so the server has, too.
	if got := w.daemons.limits; got["server threads"] != "100.0" || got["server memory"] != "1G" || got["default threads"] != "100.0" || got["default memory"] != "1G" {
		t.Errorf("limits %v", got)
	}
	if all, err := w.Apply(w.container("b"), 1); err != nil || all[0].Compute != v1alpha1.GuaranteeNone {
		t.Errorf("%+v, %v", all, err)
	}
	w.must(w.drop("b"))
	if got := w.daemons.limits; got["server threads"] != "30.0" {
		t.Errorf("with the largest slice gone: %v", got)
	}
}

// Invariant 2: no container is created or started whose server is not ready, or does
// not say that it holds its clients to what it was told.
func TestNotReady(t *testing.T) {
	w := newWorld(t)
	w.slices["a"] = v1alpha1.Slice{Pod: "a", Owner: "team/a", Ctr: "main", Core: 30, Mem: 1024, Mode: v1alpha1.ModeMPS}
	c := w.container("a")
	w.fails(w.Inject(c, &api.ContainerAdjustment{}), "not ready")
	w.daemons.ignores = true
	w.fails(w.Prepare(c), `answers "100.0" to get_default_active_thread_percentage, want 30 %`)
	w.fails(w.Inject(c, &api.ContainerAdjustment{}), "not ready")
	w.daemons.ignores = false
	w.must(w.Prepare(c))
	w.must(w.Inject(c, &api.ContainerAdjustment{}))

	for says, spoil := range map[string]func(){
		"answers \"99.0\"":               func() { w.daemons.limits["server threads"] = "99.0" },
		"answers \"80G\"":                func() { w.daemons.limits["server memory"] = "80G" },
		"in state FAULT":                 func() { w.daemons.status = faulty },
		"no answer":                      func() { w.daemons.silent = true },
		"EXCLUSIVE_PROCESS ":             func() { w.nvml.mode = device.ComputeDefault },
		"process 1 has another /dev/shm": func() { w.daemons.others = map[int]int{1: 99} },
		fmt.Sprintf("process %d has another /dev/shm", w.daemons.server): func() { w.daemons.others = map[int]int{w.daemons.server: 99} },
	} {
		limits := map[string]string{}
		for k, v := range w.daemons.limits {
			limits[k] = v
		}
		spoil()
		_, err := w.Apply(c, 1)
		w.fails(err, says)
		w.daemons.limits, w.daemons.status, w.daemons.silent, w.nvml.mode = limits, active, false, device.ComputeExclusiveProcess
		w.daemons.others = nil
	}
	// Raised before a larger slice is given out, never after.
	w.slices["b"] = v1alpha1.Slice{Pod: "b", Owner: "team/b", Ctr: "main", Core: 60, Mem: 2048, Mode: v1alpha1.ModeMPS}
	w.fails(w.Inject(w.container("b"), &api.ContainerAdjustment{}), "not ready")

	w.missing = errors.New("no such program")
	w.restart()
	w.fails(w.Supports(v1alpha1.DeviceStatus{}, ledger.Grant{}), "no such program")
	w.fails(w.Prepare(c), "no such program")
	if now, _ := w.Snapshot(); now.Driver.MPS || now.Driver.MPSReason != "no such program" {
		t.Errorf("%+v", now.Driver)
	}
}

// A device changes its mode when it is empty, and goes back to what it was.
func TestOthersOnTheDevice(t *testing.T) {
	for says, prepare := range map[string]func(w *world){
		"in mode limiter, and a device changes its mode when it is empty": func(w *world) {
			w.containers = []mode.Container{{Owner: "team/x", Name: "main", Grants: []ledger.Grant{{UUID: gpu, Mode: v1alpha1.ModeLimiter}}}}
		},
		"processes [7] use the device": func(w *world) { w.nvml.processes = []int{7} },
		"out of sight":                 func(w *world) { w.blind = true },
		"is not; see that nothing":     func(w *world) { w.nvml.stuck = true },
	} {
		w := newWorld(t)
		prepare(w)
		w.fails(w.grant("a", 30, 1024), says)
		if w.daemons.started != 0 {
			t.Errorf("%s: a daemon was started", says)
		}
	}
	w := newWorld(t)
	w.nvml.mode = 2 // PROHIBITED, whatever for
	w.must(w.grant("a", 30, 1024))
	w.must(w.drop("a"))
	if w.nvml.mode != 2 {
		t.Errorf("compute mode %d after the last slice, want what it was", w.nvml.mode)
	}
	if err := mode.Undivided(v1alpha1.DeviceStatus{MPS: true}); err == nil {
		t.Error("slices of other modes can be on a device that is shared by MPS")
	}
}

// Invariant 4: the next agent takes up what the one before has left, touches nothing,
// and knows what it gave to whom.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	c := w.container("a")
	w.must(w.Inject(c, &api.ContainerAdjustment{}))
	w.containers = []mode.Container{c}
	daemon, server := w.daemons.daemon, w.daemons.server
	w.restart()
	w.must(w.Settle())
	if w.daemons.daemon != daemon || w.daemons.server != server || w.daemons.started != 1 || w.daemons.mounts != 1 {
		t.Errorf("%+v", w.daemons)
	}
	if _, err := w.Apply(c, 1); err != nil {
		t.Error(err)
	}
	if got := w.Recall(c, nil); len(got) != 1 || got[0].UUID != gpu || got[0].Core != 30 || got[0].Mem != 1024 || got[0].Mode != v1alpha1.ModeMPS {
		t.Errorf("recalled %+v", got)
	}
	// The ledger has lost the slice: the container keeps its server.
	delete(w.slices, "a")
	w.must(w.Settle())
	w.containers, w.blind = nil, true
	w.must(w.Settle())
	if w.daemons.server != server {
		t.Error("the server was ended under a container")
	}
	w.blind = false
	w.must(w.Settle())
	if w.daemons.daemon != 0 || w.Recall(c, nil) != nil {
		t.Errorf("%+v", w.daemons)
	}
}

// Invariant 6: a power cut that comes upon the writing of a device's state leaves it empty,
// and no daemon. The next agent begins anew.
func TestPowerCut(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.must(os.Truncate(filepath.Join(w.files.folder(gpu), stateFile), 0))
	w.daemons, w.nvml = &daemons{next: 200}, &nvml{}
	w.restart()
	w.must(w.Prepare(w.container("a")))
	w.must(w.Inject(w.container("a"), &api.ContainerAdjustment{}))
	w.must(w.drop("a"))
	if left, err := filepath.Glob(filepath.Join(w.dir, "GPU-*")); w.nvml.mode != device.ComputeDefault || len(left) > 0 || err != nil {
		t.Errorf("%+v, files %v", w.nvml, left)
	}
}

// A fault ends one server, when those whom it took down are gone, and everybody there
// is told.
func TestFault(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.containers = []mode.Container{w.container("a")}
	first, daemon, now := w.daemons.server, w.daemons.daemon, time.Now()
	w.must(w.Look(now))
	w.daemons.status, w.daemons.clients = faulty, []int{41, 42}
	w.must(w.Look(now))
	w.must(w.Look(now.Add(drain - time.Second)))
	if w.daemons.server != first || len(w.warnings) != 1 || !strings.HasPrefix(w.warnings[0], "team/a "+ReasonFault) {
		t.Errorf("server %d, warned %q", w.daemons.server, w.warnings)
	}
	w.must(w.Look(now.Add(drain)))
	if s := w.daemons; s.server == first || s.daemon != daemon || s.status != active || len(s.clients) > 0 || s.limits["server threads"] != "30.0" {
		t.Errorf("%+v", s)
	}
	if _, err := w.Apply(w.container("a"), 1); err != nil {
		t.Error(err)
	}
}

// The fault of a server that went with its last slice is not the next one's: nobody tells
// that its limits once more, and it is ready all the time.
func TestFaultOfAServerBefore(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.daemons.status, w.daemons.clients = faulty, []int{41}
	w.must(w.Look(time.Now()))
	w.must(w.drop("a"))
	w.must(w.grant("b", 30, 1024))
	w.daemons.asked = nil
	w.must(w.Look(time.Now()))
	if slices.ContainsFunc(w.daemons.asked, func(command string) bool { return strings.HasPrefix(command, "set_") }) {
		t.Errorf("asked %q", w.daemons.asked)
	}
}

// A container that starts while its server is told its limits once more waits for that.
func TestApplyWaitsForTheServer(t *testing.T) {
	w := newWorld(t)
	w.haste = long
	w.must(w.grant("a", 30, 1024))
	c := w.container("a")
	ready, _ := w.server(gpu)
	w.unset(gpu)
	applied := make(chan error)
	go func() {
		_, err := w.Apply(c, 1)
		applied <- err
	}()
	select {
	case err := <-applied:
		t.Fatalf("%v before the server is ready", err)
	case <-time.After(3 * startLook):
	}
	w.set(gpu, ready)
	w.must(<-applied)
}

// An agent that comes to a server which had a fault goes on from there.
func TestFaultBeforeRestart(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	c := w.container("a")
	w.containers = []mode.Container{c}
	first, now := w.daemons.server, time.Now()
	w.daemons.status, w.daemons.clients = faulty, []int{41}
	w.restart()
	w.must(w.Settle())
	w.fails(w.Inject(c, &api.ContainerAdjustment{}), "not ready")
	w.must(w.Look(now))
	w.daemons.clients = nil // they have ended by themselves
	w.must(w.Look(now))
	if w.daemons.server == first || len(w.warnings) != 1 {
		t.Errorf("server %d, warned %q", w.daemons.server, w.warnings)
	}
	w.must(w.Inject(c, &api.ContainerAdjustment{}))

	// One that has recovered by itself is told its limits again.
	w.daemons.status = faulty
	w.restart()
	w.must(w.Settle())
	second := w.daemons.server
	w.daemons.status, w.daemons.limits["server threads"] = active, "100.0"
	w.must(w.Look(now))
	w.must(w.Inject(c, &api.ContainerAdjustment{}))
	if w.daemons.server != second || w.daemons.limits["server threads"] != "30.0" {
		t.Errorf("%+v", w.daemons)
	}
}

// Limits that somebody else has changed are set again.
func TestStrayLimits(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.daemons.limits["server memory"] = "80G"
	w.must(w.Look(time.Now()))
	if got := w.daemons.limits["server memory"]; got != "1G" {
		t.Errorf("its limit stays %s", got)
	}
}

// Those whose server went while there was no agent are told by the next one, once.
func TestLostBeforeRestart(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	c := w.container("a")
	w.containers = []mode.Container{c}
	w.must(w.grant("b", 30, 1024)) // its container is not there yet
	for _, blind := range []bool{false, true, true} {
		w.warnings, w.daemons.server = nil, 0
		if w.blind = blind; !blind {
			w.daemons.daemon = 0
		}
		w.restart()
		w.must(w.Settle())
		w.must(w.Look(time.Now()))
		w.blind = false // the runtime comes after the ledger
		w.must(w.Look(time.Now()))
		w.must(w.Settle())
		w.must(w.Look(time.Now()))
		if len(w.warnings) != 1 || !strings.HasPrefix(w.warnings[0], "team/a "+ReasonLost) {
			t.Errorf("warned %q", w.warnings)
		}
	}
	// Of one that runs nothing is told.
	w.warnings = nil
	w.restart()
	w.must(w.Settle())
	if len(w.warnings) > 0 {
		t.Errorf("warned %q of a server that goes on", w.warnings)
	}
}

// A server that is gone is replaced; one whose daemon is gone keeps its clients, and
// is replaced with the daemon when they have ended.
func TestLost(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.containers = []mode.Container{w.container("a")}
	w.daemons.server = 0
	w.must(w.Look(time.Now()))
	if w.daemons.server == 0 || w.daemons.started != 1 || len(w.warnings) != 1 || !strings.Contains(w.warnings[0], ReasonLost) {
		t.Errorf("%+v, warned %q", w.daemons, w.warnings)
	}

	orphan := w.daemons.server
	for _, how := range []func(){func() { w.daemons.daemon = 0 }, func() { w.daemons.silent = true }} {
		how()
		w.fails(w.Look(time.Now()), "goes on for the clients")
		w.fails(w.Settle(), "goes on for the clients")
		w.fails(w.Inject(w.container("a"), &api.ContainerAdjustment{}), "not ready")
		if w.daemons.server != orphan || w.daemons.daemon != 0 {
			t.Errorf("%+v", w.daemons)
		}
		w.daemons.server = 0
		w.must(w.Settle())
		w.must(w.Inject(w.container("a"), &api.ContainerAdjustment{}))
		orphan = w.daemons.server
	}
	// Containers see the new daemon's socket in the folder that they have.
	control := must.Get(os.ReadFile(filepath.Join(pipes(w.files.folder(gpu)), "control")))(t)
	if shown, err := os.ReadFile(filepath.Join(w.files.clients(gpu, ""), "control")); err != nil || string(shown) != strings.TrimSpace(string(control)) {
		t.Errorf("%q, %v", shown, err)
	}
}

// A daemon that has another /dev/shm than containers get, such as one that was started
// before a device had its own, is ended; its server goes on for the clients that it has.
func TestDaemonWithAnotherSharedMemory(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", 30, 1024))
	w.containers = []mode.Container{w.container("a")}
	w.daemons.has, w.daemons.clients = 99, []int{41}
	w.restart()
	w.fails(w.Settle(), "goes on for the clients")
	w.fails(w.Inject(w.container("a"), &api.ContainerAdjustment{}), "not ready")
	w.daemons.server = 0
	w.must(w.Settle())
	if _, err := w.Apply(w.container("a"), 1); err != nil || w.daemons.mounts != 1 {
		t.Errorf("%v, %+v", err, w.daemons)
	}
	// The agent finds it out by itself.
	w.daemons.has = 99
	w.fails(w.Look(time.Now()), "goes on for the clients")
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{"5G": 5 << 30, "900M": 900 << 20, "4K": 4096, "1GB": 1 << 30, "1048576": 1 << 20, "0": 0} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "M", "x", "-1G", "No limit is set", "99999999999G", "1.5G"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}
