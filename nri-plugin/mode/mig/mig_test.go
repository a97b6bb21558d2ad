// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

func (w *world) has(places ...v1alpha1.MIGPlace) {
	w.t.Helper()
	if len(w.driver.is) != len(places) || slices.ContainsFunc(places, func(p v1alpha1.MIGPlace) bool { return w.driver.is[p] == "" }) {
		w.t.Errorf("the device has %v, want whole instances at %v", w.driver.is, places)
	}
}

// An instance is made with its slice, given to the container, read back, and goes
// with the slice.
func TestLife(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.must(w.grant("b", two))
	w.has(one, two)
	c, adjust := w.container("a"), &api.ContainerAdjustment{}
	w.must(w.Inject(c, adjust))
	if got := adjust.GetCDIDevices(); len(got) != 1 || got[0].GetName() != "vernier.dev/gpu="+w.driver.is[one] || len(adjust.GetMounts()) != 0 {
		t.Errorf("given %v", got)
	}
	for _, all := range [][]v1alpha1.SliceStatus{first(w.Apply(c, 1)), w.Observe(c, 1)} {
		if len(all) != 1 || all[0].Memory != v1alpha1.GuaranteeHardware || all[0].Compute != v1alpha1.GuaranteeHardware || *all[0].MIG != one || all[0].Note != "" {
			t.Errorf("status %+v", all)
		}
		if got := w.Recall(c, all); len(got) != 1 || got[0].MIG != one || got[0].UUID != gpu || got[0].Mode != v1alpha1.ModeMIG {
			t.Errorf("recalled %+v", got)
		}
	}
	for _, i := range w.seen.Devices[0].Instances {
		if !i.Own {
			t.Errorf("%+v is not marked as ours", i)
		}
	}
	w.must(w.Ended(c))
	w.has(one, two)
	w.must(w.drop("a"))
	w.has(two)
	if len(w.seen.Devices[0].Instances) != 1 {
		t.Error("the picture still shows the instance")
	}
}

func first[T any](v T, _ error) T { return v }

// Invariant 2: a container whose instance is not there is not created, and one whose
// instance was made again under it is not started.
func TestNotReady(t *testing.T) {
	w := newWorld(t)
	w.slices["a"] = one
	c := w.container("a")
	if err := w.Inject(c, &api.ContainerAdjustment{}); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("before it is made: %v", err)
	}
	w.must(w.Prepare(c))
	w.must(w.Inject(c, &api.ContainerAdjustment{}))
	for _, uuid := range []string{"MIG-another", ""} {
		w.driver.is[one] = uuid
		if _, err := w.Apply(c, 1); err == nil || !strings.Contains(err.Error(), "destroyed after") {
			t.Errorf("%q in its place: %v", uuid, err)
		}
	}
	if all := w.Observe(c, 1); all[0].Memory != v1alpha1.GuaranteeNone || all[0].Note == "" {
		t.Errorf("its instance is gone: %+v", all)
	}
	w.driver.dead = true
	if _, err := w.Apply(c, 1); err == nil || w.Observe(c, 1) != nil {
		t.Error("what holds it is known although the driver doesn't answer")
	}
}

// What others have made is used where it fits, is in the way where it doesn't, and
// is never destroyed.
func TestForeign(t *testing.T) {
	w := newWorld(t)
	w.driver.is[three] = "MIG-theirs"
	w.must(w.Refresh())
	w.must(w.grant("a", three))
	if w.driver.is[three] != "MIG-theirs" || w.seen.Devices[0].Instances[0].Own {
		t.Errorf("%v, %+v", w.driver.is, w.seen)
	}
	if err := w.grant("b", two); err == nil || !strings.Contains(err.Error(), "in its way") {
		t.Errorf("%v", err)
	}
	delete(w.slices, "b")
	w.must(w.drop("a"))
	w.has(three)
	w.driver.is[three] = "" // cut up further
	if err := w.grant("a", three); err == nil || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("%v", err)
	}
	delete(w.slices, "a")
	w.must(w.Sweep())
	if len(w.driver.is) != 1 {
		t.Error("it was destroyed")
	}

	// Ours was destroyed, and the same made in its place by another.
	w = newWorld(t)
	w.must(w.grant("a", one))
	w.driver.is[one] = "MIG-theirs"
	w.restart()
	w.must(w.drop("a"))
	if w.driver.is[one] != "MIG-theirs" {
		t.Error("an instance of the same kind in the place of ours was destroyed")
	}
}

// What a container has stays whatever the ledger says, and while the runtime is out
// of sight nothing is destroyed.
func TestInUse(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.containers = []mode.Container{w.container("a")}
	w.must(w.drop("a"))
	w.has(one)
	w.containers, w.blind = nil, true
	w.must(w.Sweep())
	w.has(one)
	if err := w.grant("b", v1alpha1.MIGPlace{Profile: 9, Start: 4, Size: 4}); err == nil {
		t.Error("it was destroyed for another while the runtime was out of sight")
	}
	delete(w.slices, "b")
	w.blind = false
	w.must(w.Sweep())
	w.has()
}

// A process that is still ending keeps its instance for a moment: the release fails
// and is tried again. Until then the instance serves whom the ledger gives it.
func TestBusy(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.driver.busy = true
	if err := w.drop("a"); err == nil {
		t.Error("a failed release is none")
	}
	w.must(w.grant("b", one))
	w.must(w.Inject(w.container("b"), &api.ContainerAdjustment{}))
	w.driver.busy = false
	w.must(w.Release("a"))
	w.has(one)
	w.must(w.drop("b"))
	w.has()
}

// What is left of a slice that went makes room at once for one that needs the place.
func TestMakesRoom(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.must(w.grant("b", two))
	delete(w.slices, "a") // its release has not come to it yet
	if err := w.grant("c", three); err == nil {
		t.Error("a slice's instance was destroyed for another")
	}
	delete(w.slices, "b")
	w.must(w.Prepare(w.container("c")))
	w.has(three)
}

// What was prepared and vanishes, as by a reset of the device, is made again; what
// nobody needs goes, however it was missed before.
func TestSettle(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.must(w.grant("b", two))
	delete(w.driver.is, one)
	delete(w.slices, "b")
	w.driver.busy = true
	w.must(w.Refresh())
	if w.Settle() == nil {
		t.Error("what could not be destroyed is no error")
	}
	w.has(one, two)
	w.driver.busy = false
	w.must(w.Settle())
	w.has(one)
	steps := w.driver.steps
	w.must(w.Settle())
	if w.driver.steps != steps {
		t.Error("it does something although nothing is amiss")
	}
}

// Invariant 6: a power cut that comes upon the writing of the file leaves it empty, and no
// instance. The next agent begins anew.
func TestPowerCut(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.must(os.Truncate(w.path, 0))
	clear(w.driver.is)
	w.restart()
	w.settle()
	w.has(one)
	w.must(w.drop("a"))
	w.has()
}

// A slice that has gone before its instance is made gets none.
func TestPrepareTooLate(t *testing.T) {
	w := newWorld(t)
	w.slices["a"] = one
	c := w.container("a")
	delete(w.slices, "a")
	w.must(w.Prepare(c))
	w.has()
}

// Invariant 6: wherever the agent dies between two changes of what is on the device,
// the next one brings instances and slices together: no orphan, none lost, no
// container's touched, nothing of others destroyed.
func TestCrashAtEveryStep(t *testing.T) {
	life := func(w *world) {
		_ = w.grant("a", one)
		_ = w.grant("b", two)
		_ = w.drop("a")
		_ = w.drop("b")
		_ = w.grant("c", three)
		_ = w.drop("c")
		_ = w.grant("d", one)
	}
	whole := newWorld(t)
	life(whole)
	if whole.driver.steps < 20 {
		t.Fatalf("%d steps", whole.driver.steps)
	}
	for crash := 1; crash <= whole.driver.steps; crash++ {
		w := newWorld(t)
		w.driver.is[four] = "MIG-theirs"
		w.driver.crash = crash
		life(w)
		w.restart()
		w.settle()
		w.has(four, one)
		if w.driver.is[four] != "MIG-theirs" || len(w.made.entries) != 1 {
			t.Errorf("%v, entries %+v", w.driver.is, w.made.entries)
		}

		// The machine goes down too: the driver forgets all instances, and somebody
		// makes the same as there were.
		w = newWorld(t)
		w.driver.crash = crash
		life(w)
		for n := range w.made.entries {
			w.made.entries[n].Boot = "an earlier one"
		}
		w.must(w.made.save(w.made.entries))
		for place := range w.driver.is {
			w.driver.is[place] = "MIG-theirs"
		}
		theirs := maps.Clone(w.driver.is)
		w.restart()
		delete(w.slices, "d")
		w.must(w.Sweep())
		if !maps.Equal(w.driver.is, theirs) {
			t.Errorf("of %v is left %v", theirs, w.driver.is)
		}
		if t.Failed() {
			t.Fatalf("crash at step %d", crash)
		}
	}
}

// Invariant 4: a restart of the agent recognises what is there and makes nothing
// again.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.must(w.grant("a", one))
	w.containers = []mode.Container{w.container("a")}
	before, steps := w.driver.is[one], w.driver.steps
	w.restart()
	w.settle()
	if w.driver.is[one] != before || w.driver.steps != steps {
		t.Errorf("%s became %s in %d steps", before, w.driver.is[one], w.driver.steps-steps)
	}
	if all, err := w.Apply(w.container("a"), 1); err != nil || all[0].Memory != v1alpha1.GuaranteeHardware {
		t.Errorf("%+v, %v", all, err)
	}
	w.must(os.WriteFile(w.path, []byte("["), 0o600))
	if _, err := New(w.path, w.node); err == nil || !strings.Contains(err.Error(), "remove "+w.path) {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestSupports(t *testing.T) {
	w := newWorld(t)
	on := w.seen.Devices[0]
	off, none := on, on
	off.MIG, none.MIG = v1alpha1.MIGDisabled, v1alpha1.MIGUnsupported
	unhealthy, beside := on, one
	beside.Start++
	unhealthy.Instances = []v1alpha1.MIGInstance{{MIGPlace: one, UUID: "MIG-1", Reason: "Xid 48"}, {MIGPlace: beside, UUID: "MIG-2"}}
	for _, c := range []struct {
		device v1alpha1.DeviceStatus
		place  v1alpha1.MIGPlace
		says   string
	}{
		{on, one, ""}, {off, one, "MIG is off"}, {none, one, "no MIG"},
		{unhealthy, one, "unhealthy: Xid 48"}, {unhealthy, beside, ""},
		{on, v1alpha1.MIGPlace{Profile: 77, Size: 1}, "profile 77"}, {on, v1alpha1.MIGPlace{Profile: 19, Size: 2}, "profile 19 over 2"},
	} {
		err := w.Supports(c.device, ledger.Grant{MIG: c.place})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v, want %q", c.place, err, c.says)
		}
	}
}
