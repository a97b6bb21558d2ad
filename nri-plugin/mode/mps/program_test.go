// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// node is a node with the simulated driver's own programs.
type node struct {
	*Mode
	t       *testing.T
	sim     *simgpu.Sim
	program *Program
	nvml    *inventory.Inventory
	seen    device.Snapshot
	ledger  v1alpha1.SliceLedger
	// containers that run, and what their pods are warned of.
	containers []mode.Container
	warnings   []string
}

// newNode is for tests in a mount namespace of their own.
func newNode(t *testing.T, driver string) *node {
	t.Helper()
	n := &node{t: t, sim: simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}, Driver: driver})}
	inv, lib, err := inventory.Open(inventory.Options{Library: n.sim.NVML()})
	must.Do(t, err)
	t.Cleanup(func() { lib.Shutdown() })
	if n.seen, err = inv.Scan(); err != nil {
		t.Fatal(err)
	}
	n.nvml = inv
	n.program = &Program{Root: "/", Path: n.sim.Program(controlName), Libraries: n.sim.Bin}
	dir, err := os.MkdirTemp("", "mps") // a socket's path is bounded
	must.Do(t, err)
	n.restart(dir, n.program)
	t.Cleanup(func() {
		n.ledger.Spec.Devices, n.containers = nil, nil
		must.Report(t, n.Settle())
		if left := n.processes(); len(left) > 0 {
			t.Errorf("processes %+v are left", left)
		}
		if now, err := inv.ComputeMode(n.uuid()); now != device.ComputeDefault || err != nil {
			t.Errorf("compute mode %d, %v is left", now, err)
		}
		if left := mounted(t, dir); left != "" {
			t.Errorf("mounts are left:\n%s", left)
		}
		must.Report(t, os.RemoveAll(dir))
	})
	return n
}

// long is the patience with programs that answer: how fast they do is no matter of these
// tests, and a machine that has no time for them makes them late.
const long = 90 * time.Second

// restart is the agent's next process.
func (n *node) restart(dir string, daemons Daemons) {
	n.Mode = New(dir, Node{
		Devices: n, Index: func() *ledger.Index { return ledger.NewIndex(&n.ledger) },
		Find:       func() (Daemons, error) { return daemons, nil },
		Containers: func() ([]mode.Container, bool) { return n.containers, true },
		Driver:     &driverlimit.Limit{Devices: n}, Root: Root,
		Warn: func(c mode.Container, reason, _ string) { n.warnings = append(n.warnings, c.Owner+" "+reason) },
	})
	if daemons == n.program {
		n.patience, n.haste = long, long
	}
}

func (n *node) uuid() string                      { return n.seen.Devices[0].UUID }
func (n *node) Snapshot() (device.Snapshot, bool) { return n.seen, true }
func (n *node) Library() (device.Library, error)  { return n.nvml, nil }
func (n *node) Refresh() error                    { return nil }

func (n *node) grant(pod string, core v1alpha1.Percent, mem v1alpha1.MiB) mode.Container {
	n.t.Helper()
	c := n.enter(pod, core, mem)
	must.Do(n.t, n.Prepare(c))
	return c
}

// enter writes a slice into the ledger.
func (n *node) enter(pod string, core v1alpha1.Percent, mem v1alpha1.MiB) mode.Container {
	if len(n.ledger.Spec.Devices) == 0 {
		n.ledger.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: n.uuid(), Core: 100, Mem: size}}
	}
	on := &n.ledger.Spec.Devices[0]
	s := v1alpha1.Slice{Pod: types.UID(pod), Owner: "team/" + pod, Ctr: "main", Core: core, Mem: mem, Mode: v1alpha1.ModeMPS}
	on.Slices = append(on.Slices, s)
	return mode.Container{Pod: s.Pod, Owner: s.Owner, Name: "main", ID: "id-" + pod,
		Grants: ledger.NewIndex(&n.ledger).Grants(ledger.Key{Pod: s.Pod, Container: "main"})}
}

// leave takes a pod's slice out of the ledger, and the agent hears of it.
func (n *node) leave(pod string) error {
	on := &n.ledger.Spec.Devices[0]
	on.Slices = slices.DeleteFunc(on.Slices, func(s v1alpha1.Slice) bool { return string(s.Pod) == pod })
	return n.Release(types.UID(pod))
}

// run runs a program as the container, without the variables of those names.
func (n *node) run(c mode.Container, without ...string) string {
	n.t.Helper()
	out, _ := n.command(c, without, "cudademo", "--alloc-until-fail").CombinedOutput() // what it says tells how it went
	return string(out)
}

// allocates has the container's program take all the memory that it is given.
func (n *node) allocates(c mode.Container, mib int) {
	n.t.Helper()
	if said, want := n.run(c), fmt.Sprintf("allocated mib=%d", mib); !strings.Contains(said, want) {
		n.t.Errorf("pod %s says %q, want %q", c.Owner, said, want)
	}
}

// processes are those of the device's daemon.
func (n *node) processes() []Process {
	n.t.Helper()
	return must.Get(n.program.Processes(n.files.folder(n.uuid())))(n.t)
}

// await looks again and again: what ends may do so a moment later.
func (n *node) await(look func() error) {
	n.t.Helper()
	for late := time.After(long); ; {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-late:
			n.t.Fatal(err)
		case <-time.After(startLook):
		}
	}
}

// command is a program of the container's, in a mount namespace of its own.
func (n *node) command(c mode.Container, without []string, name string, args ...string) *exec.Cmd {
	n.t.Helper()
	adjust := &api.ContainerAdjustment{}
	must.Do(n.t, n.Inject(c, adjust))
	cmd := within(adjust, n.sim.Program(name), args...)
	cmd.Env = n.sim.Env()
	for _, v := range adjust.GetEnv() {
		if !slices.Contains(without, v.GetKey()) {
			cmd.Env = append(cmd.Env, v.GetKey()+"="+strings.Replace(v.GetValue(), Folder, adjust.GetMounts()[0].GetSource(), 1))
		}
	}
	return cmd
}

// plant has the simulated programs fail.
func (n *node) plant(fault string, value ...string) {
	n.t.Helper()
	must.Do(n.t, n.sim.MPS("0", fault, value...))
}

// The driver's own programs: containers are held to their slices; without the limits
// in their environment, to those of the largest; and without the pipe they get nothing.
func TestPrograms(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver535)
	small, large := n.grant("a", 30, 1000), n.grant("b", 50, 2000)
	must.Get(n.Apply(small, n.first(small)))(t)
	for _, run := range []struct {
		c       mode.Container
		without []string
		want    string
	}{
		{small, nil, "allocated mib=1000"},
		{large, nil, "allocated mib=2000"},
		{small, []string{envThreads, envMemory}, "allocated mib=2000"},
		{small, []string{envPipe}, "DEVICE_UNAVAILABLE"},
	} {
		if said := n.run(run.c, run.without...); !strings.Contains(said, run.want) {
			t.Errorf("pod %s without %v says %q, want %q", run.c.Owner, run.without, said, run.want)
		}
	}
	// A file that takes commands is not among those that the container has.
	if _, err := n.program.Ask(n.files.clients(n.uuid(), ""), "get_server_list", patience); err == nil {
		t.Error("commands are taken from where clients are")
	}

	before := n.processes()
	if len(before) != 2 || before[0].Server == before[1].Server {
		t.Fatalf("processes %+v, want a daemon and a server", before)
	}
	n.restart(n.files.dir, n.program)
	must.Do(t, n.Settle())
	if after := n.processes(); !slices.Equal(before, after) {
		t.Errorf("processes %+v, want %+v", after, before)
	}
	n.allocates(large, 2000)
}

// Both protocols' drivers.
var drivers = []string{simgpu.Driver535, simgpu.Driver555, simgpu.DriverNewest}

// A daemon that is killed is replaced, and one that does not answer too.
func TestDaemonFails(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { daemonFails(t, newNode(t, driver)) })
	}
}

func daemonFails(t *testing.T, n *node) {
	c := n.grant("a", 30, 1000)
	for how, is := range map[string]func(){"killed": func() { n.plant("crash") }, "silent": func() { n.plant("hang", "on") }} {
		t.Log(how)
		is()
		n.patience = briefly // it is silent for long enough
		err := n.Look(time.Now())
		n.patience = long
		n.plant("hang", "off")
		// Its server may go on for a moment, and another is started after it.
		n.await(func() error {
			if err != nil {
				err = n.Settle()
			}
			if err == nil {
				err = n.Prepare(c)
			}
			return err
		})
		n.allocates(c, 1000)
	}
}

// Invariant 2: a daemon that does not keep its limits is found out.
func TestLimitsAreReadBack(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { limitsAreReadBack(t, newNode(t, driver)) })
	}
}

func limitsAreReadBack(t *testing.T, n *node) {
	n.plant("ignore", "on")
	c := n.enter("a", 30, 1000)
	if err := n.Prepare(c); err == nil || !strings.Contains(err.Error(), "30 %") {
		t.Errorf("%v", err)
	}
	if err := n.Inject(c, &api.ContainerAdjustment{}); err == nil {
		t.Error("the container is created")
	}
}

func TestFindProgram(t *testing.T) {
	root := t.TempDir()
	if _, err := FindProgram(root, ""); err == nil || !strings.Contains(err.Error(), "--driver-root") {
		t.Errorf("%v", err)
	}
	at := filepath.Join(root, "usr/bin", controlName)
	must.Do(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must.Do(t, os.WriteFile(at, nil, 0o755))
	p, err := FindProgram(root, filepath.Join(root, "usr/lib"))
	if err != nil || p.Root != "/" || p.Path != at {
		t.Fatalf("%+v, %v", p, err)
	}
	p.InRoot(root)
	if p.Root != root || p.Path != "/usr/bin/"+controlName || p.Libraries != "/usr/lib" {
		t.Errorf("%+v", p)
	}
}

// Each driver's daemon is started with what it knows: 535 and 550 do not start with more.
func TestOptions(t *testing.T) {
	for version, want := range map[string]string{
		"": "-f", "535.309.01": "-f", "550.163.01": "-f", "555.58.02": "-f -multiuser-server", "580.65.06": "-f -multiuser-server",
		"615.43.02": "-f -m -p 3",
	} {
		if got := strings.Join(branchOf(version).options(), " "); got != want {
			t.Errorf("driver %q: %q, want %q", version, got, want)
		}
	}
}

// A daemon that tells no status serves all the same, and nothing is taken for a fault.
// Its server takes one user's clients at a time: the next one's server is held to the
// limits too, and nobody is warned of a loss.
func TestDriver535(t *testing.T) {
	w := newWorld(t)
	w.driver, w.daemons.old = "535.309.01", true
	w.must(w.grant("a", 30, 1500)) // which is read back as 1G
	c := w.container("a")
	w.containers = append(w.containers, c)
	all, err := w.Apply(c, 1)
	w.must(err)
	if !strings.Contains(all[0].Note, "one user at a time") {
		t.Errorf("status %+v", all)
	}
	w.must(w.Look(time.Now()))
	first := w.daemons.server
	w.daemons.server = w.daemons.pid()
	w.daemons.limits["server threads"] = "100.0"
	w.must(w.Look(time.Now()))
	if _, err := w.Apply(c, 1); err != nil || w.daemons.server == first || w.daemons.limits["server threads"] != "30.0" {
		t.Errorf("%v, limits %v", err, w.daemons.limits)
	}
	if len(w.warnings) > 0 {
		t.Errorf("the pods are warned %q", w.warnings)
	}
}

// Limits of a GiB and more are reported in whole GiB alone: as many are what was set, fewer
// or more are not, and nothing smaller is rounded.
func TestMemoryIsReadBackInWholeGiB(t *testing.T) {
	for _, c := range []struct {
		mem   v1alpha1.MiB
		reply string
		same  bool
	}{
		{20328, "19G", true}, {20328, "20328M", true}, {20480, "20G", true}, {20328, "20G", false}, {20328, "18G", false},
		{20328, "19456M", false}, {1000, "1000M", true}, {1000, "0G", false}, {1000, "999M", false}, {1000, "", false},
	} {
		t.Run(fmt.Sprintf("%d MiB %s", c.mem, c.reply), func(t *testing.T) {
			if got := (limits{mem: c.mem}).sameMemory(c.reply); got != c.same {
				t.Errorf("%v, want %v", got, c.same)
			}
		})
	}
}
