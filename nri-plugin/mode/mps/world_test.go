// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
)

const (
	gpu  = "GPU-01234567-89ab-cdef-0123-456789abcdef"
	size = v1alpha1.MiB(81920)
)

// world is a node with one device, its ledger, its containers and its daemons.
type world struct {
	*Mode
	t          *testing.T
	dir        string
	daemons    *daemons
	nvml       *nvml
	slices     map[string]v1alpha1.Slice // by the pod that has them
	containers []mode.Container
	blind      bool
	missing    error
	warnings   []string
	driver     string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "mps"), daemons: &daemons{next: 100}, nvml: &nvml{}, slices: map[string]v1alpha1.Slice{}, driver: "555.58.02"}
	w.restart()
	return w
}

// restart is the agent's next process.
func (w *world) restart() {
	w.Mode = New(w.dir, Node{
		Devices: w, Index: w.index, Driver: &driverlimit.Limit{Devices: w},
		Find:       func() (Daemons, error) { return w.daemons, w.missing },
		Root:       func(uint32) bool { return false },
		Containers: func() ([]mode.Container, bool) { return w.containers, !w.blind },
		Warn: func(c mode.Container, reason, message string) {
			w.warnings = append(w.warnings, c.Owner+" "+reason+" "+message)
		},
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// fails wants an error that says so.
func (w *world) fails(err error, says string) {
	w.t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		w.t.Errorf("%v, want %q", err, says)
	}
}

func (w *world) index() *ledger.Index {
	l := &v1alpha1.SliceLedger{}
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: gpu, Core: 100, Mem: size}}
	for _, pod := range slices.Sorted(maps.Keys(w.slices)) {
		l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, w.slices[pod])
	}
	return ledger.NewIndex(l)
}

func (w *world) container(pod string) mode.Container {
	return mode.Container{Pod: types.UID(pod), Owner: "team/" + pod, Name: "main", ID: "id-" + pod,
		Grants: w.index().Grants(ledger.Key{Pod: types.UID(pod), Container: "main"})}
}

// grant gives a pod a slice, and the agent prepares it.
func (w *world) grant(pod string, core v1alpha1.Percent, mem v1alpha1.MiB) error {
	w.slices[pod] = v1alpha1.Slice{Pod: types.UID(pod), Owner: "team/" + pod, Ctr: "main", Core: core, Mem: mem, Mode: v1alpha1.ModeMPS}
	return w.Prepare(w.container(pod))
}

// drop takes a pod's slice out of the ledger, and the agent hears of it.
func (w *world) drop(pod string) error {
	delete(w.slices, pod)
	return w.Release(types.UID(pod))
}

func (w *world) Snapshot() (device.Snapshot, bool) {
	s := device.Snapshot{
		Driver:  v1alpha1.DriverStatus{Version: w.driver, MemoryLimitsReason: "driver 535 has none"},
		Devices: []v1alpha1.DeviceStatus{{UUID: gpu, Mem: size, MIG: v1alpha1.MIGDisabled}},
	}
	w.Mark(&s)
	return s, true
}
func (w *world) Library() (device.Library, error) { return w.nvml, nil }
func (w *world) Refresh() error                   { return nil }

// nvml has one device's compute mode and the processes that use it.
type nvml struct {
	device.Library
	mode      device.ComputeMode
	stuck     bool
	processes []int
}

func (n *nvml) Processes(string) ([]int, error) { return n.processes, nil }
func (n *nvml) ComputeMode(string) (device.ComputeMode, error) {
	return n.mode, nil
}
func (n *nvml) SetComputeMode(_ string, mode device.ComputeMode) error {
	if !n.stuck {
		n.mode = mode
	}
	return nil
}

// daemons is one control daemon and its server, which speak the real one's text, of the
// legacy protocol.
type daemons struct {
	next    int
	daemon  int // its PID, 0 without
	server  int
	dir     string
	uuid    string
	status  string
	clients []int
	limits  map[string]string
	asked   []string
	started int
	silent  bool // it does not answer
	old     bool // as 535's it tells no status
	ignores bool // it takes limits and does not keep them

	// memory is the number of the tmpfs that is mounted, 0 without one; others have
	// another, by PID: all that have none have the daemon's, which is what it started with.
	memory, mounts int
	others         map[int]int
	has            int
}

func (d *daemons) Mount(string, int) error {
	if d.memory == 0 {
		d.mounts++
		d.memory = d.mounts
	}
	return nil
}

func (d *daemons) Unmount(string) error { d.memory = 0; return nil }

func (d *daemons) Shares(_ string, pid int) (bool, error) {
	has, other := d.others[pid]
	if !other {
		has = d.has
	}
	return d.memory != 0 && has == d.memory, nil
}

func (d *daemons) pid() int { d.next++; return d.next }

func (d *daemons) Run(string, time.Duration, ...string) (string, error) {
	return "", errors.New("usage")
}

func (d *daemons) Start(dir, uuid string, _ branch) error {
	d.started++
	d.daemon, d.dir, d.uuid, d.silent, d.has = d.pid(), dir, uuid, false, d.memory
	d.limits = map[string]string{"default threads": "100.0", "default memory": "none"}
	for _, name := range []string{"control", "control_privileged"} {
		// As a new socket of the name.
		path := filepath.Join(pipes(dir), name)
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte(fmt.Sprint(d.daemon)), 0o666)); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemons) Processes(dir string) ([]Process, error) {
	var all []Process
	if d.daemon != 0 && d.dir == dir {
		all = append(all, Process{PID: d.daemon})
	}
	if d.server != 0 && d.dir == dir {
		all = append(all, Process{PID: d.server, Server: true})
	}
	return all, nil
}

func (d *daemons) End(all []Process) error {
	for _, p := range all {
		switch p.PID {
		case d.daemon:
			d.daemon = 0
		case d.server:
			d.server, d.clients = 0, nil
		}
	}
	return nil
}

func (d *daemons) Ask(dir, command string, _ time.Duration) (string, error) {
	if d.daemon == 0 || d.dir != dir || d.silent {
		return "", errors.New("no answer")
	}
	d.asked = append(d.asked, command)
	words := strings.Fields(command)
	of := "default "
	if len(words) > 1 && words[1] == fmt.Sprint(d.server) {
		of = "server "
	}
	set := func(what, value string) {
		if !d.ignores {
			d.limits[of+what] = value
		}
	}
	switch last := words[len(words)-1]; words[0] {
	case "get_server_list":
		if d.server == 0 {
			return "", nil
		}
		return fmt.Sprintln(d.server), nil
	case "start_server":
		d.server, d.status = d.pid(), active
		d.limits["server threads"], d.limits["server memory"] = d.limits["default threads"], d.limits["default memory"]
		return "", nil
	case "get_server_status":
		if d.old {
			return "Unknown command \"get_server_status\"\n", nil
		}
		return d.status + "\n", nil
	case "get_client_list":
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(d.clients), " ", "\n"), "[]"), nil
	case "terminate_client":
		d.clients = slices.DeleteFunc(d.clients, func(pid int) bool { return fmt.Sprint(pid) == last })
		return "", nil
	case "shutdown_server":
		d.server = 0
		return "", nil
	case "set_default_active_thread_percentage", "set_active_thread_percentage":
		set("threads", last+".0")
		return last + ".0", nil
	case "set_default_device_pinned_mem_limit", "set_device_pinned_mem_limit":
		if mib, err := strconv.Atoi(strings.TrimSuffix(last, "M")); err == nil && mib >= 1024 {
			last = fmt.Sprint(mib/1024, "G") // and the rest is lost, as with the real one
		}
		set("memory", last)
		return "", nil
	case "get_default_active_thread_percentage", "get_active_thread_percentage":
		return d.limits[of+"threads"] + "\n", nil
	case "get_default_device_pinned_mem_limit", "get_device_pinned_mem_limit":
		return d.limits[of+"memory"] + "\n", nil
	}
	return "", fmt.Errorf("unknown command %q", command)
}
