// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"vernier.dev/vernier/test/must"
)

func (r resized) setReady(mib uint64) error {
	return SetReady(r.limits, r.counters, r.pace, resizedGPU, mib<<20)
}

func (r resized) lendable() Lendable {
	r.t.Helper()
	return must.Get(ReadLendable(r.limits, r.counters, r.pace))(r.t)[1]
}

// Whatever is ready, the limit in force is what it was. Each amount is in force by a change of the
// total that counts.
func TestSetReady(t *testing.T) {
	r := newResized(t, 30)
	r.charge(40 << 20)
	for _, step := range []struct{ set, want uint64 }{{60, 60}, {40, 40}, {99, 99}, {100, 100}, {500, 100}, {50, 50}, {0, 100}} {
		before := r.total()
		must.Do(t, r.setReady(step.set))
		r.want(30, 100)
		if is := r.lendable(); is != (Lendable{resizedGPU, 100 << 20, step.want << 20, 40 << 20, 0}) {
			t.Errorf("after %d MiB: %+v", step.set, is)
		}
		if r.total() != before+oneChange {
			t.Errorf("the total is %#x after %#x", r.total(), before)
		}
	}
	must.Do(t, r.setReady(50))
	must.Do(t, r.resize(30, 45)) // a limit below it
	if is := r.lendable(); is.ReadyBytes != 45<<20 || is.LimitBytes != 45<<20 {
		t.Errorf("%+v", is)
	}
}

// More is charged than would be ready: nothing changes.
func TestSetReady_WhenMoreIsUsed(t *testing.T) {
	r := newResized(t, 30)
	r.charge(60<<20 + 1)
	must.Do(t, r.setReady(70))
	before := r.total()
	err := r.setReady(60)
	if infeasible, is := errors.AsType[*InfeasibleError](err); !is || infeasible.UsedBytes != 60<<20+1 {
		t.Errorf("%v, want it infeasible", err)
	}
	if is := r.lendable(); is.ReadyBytes != 70<<20 || r.total() != before {
		t.Errorf("%+v", is)
	}
}

// Interrupted before the total was changed, the next call puts it in force.
func TestSetReady_WhenItWasInterrupted(t *testing.T) {
	r := newResized(t, 30)
	r.charge(40 << 20)
	before := r.total()
	func() {
		defer func() { _ = recover() }()
		step = func() { panic("killed") }
		_ = r.setReady(50)
	}()
	step = func() {}
	if r.lendable().ReadyBytes != 50<<20 || r.total() != before {
		t.Error("it was not interrupted")
	}
	must.Do(t, r.setReady(50))
	if r.total() != before+oneChange {
		t.Error("it is not in force")
	}
}

// A container of a release before never lends; what a tenant writes is within its limit.
func TestReadLendable_WhenHostile(t *testing.T) {
	r := newResized(t, 30)
	all := uint64(1<<64 - 1)
	for _, offset := range []int64{0, devWantedOff} {
		must.Get(r.process.WriteAt(binary.LittleEndian.AppendUint64(nil, all), countersDevicesOff+countersDeviceSize+offset))(t)
	}
	if is := r.lendable(); is != (Lendable{resizedGPU, 100 << 20, 100 << 20, 100 << 20, 100 << 20}) {
		t.Errorf("%+v", is)
	}
	f := must.Get(os.OpenFile(r.pace, os.O_WRONLY, 0))(t)
	must.Get(f.WriteAt([]byte{readsReady - 1}, paceResizesOff))(t)
	must.Do(t, f.Close())
	_, err := ReadLendable(r.limits, r.counters, r.pace)
	if set := r.setReady(10); !errors.Is(err, ErrOlderLibrary) || !errors.Is(set, ErrOlderLibrary) {
		t.Errorf("%v and %v, want both of an older library", err, set)
	}
}
