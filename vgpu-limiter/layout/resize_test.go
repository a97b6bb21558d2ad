// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

const resizedGPU = "GPU-00112233-4455-6677-8899-aabbccddeeff"

// resized is a container with 30 percent and 100 MiB of its second device.
type resized struct {
	t                      *testing.T
	limits, counters, pace string
	process                *os.File // open as by a process that lives
}

func newResized(t *testing.T, core uint32) resized {
	t.Helper()
	dir := t.TempDir()
	r := resized{t, filepath.Join(dir, "limits"), filepath.Join(dir, "counters"), filepath.Join(dir, "pace"), nil}
	must.Do(t, errors.Join(
		WriteFile(r.limits, Limits{Container: "c", Devices: []DeviceLimit{
			{UUID: "GPU-ffeeddcc-bbaa-9988-7766-554433221100", Core: 7, MemoryBytes: 1 << 30},
			{UUID: resizedGPU, Core: core, MemoryBytes: 100 << 20, MayBurst: core != 0},
		}}),
		CreateCounters(r.counters, 2),
		CreatePace(r.pace, 2),
	))
	r.process = must.Get(os.OpenFile(r.counters, os.O_RDWR, 0))(t)
	t.Cleanup(func() { _ = r.process.Close() })
	return r
}

func (r resized) resize(core uint32, mib uint64) error {
	return Resize(r.limits, r.counters, r.pace, DeviceLimit{UUID: resizedGPU, Core: core, MemoryBytes: mib << 20})
}

// want compares what InForce says of both devices.
func (r resized) want(core uint32, mib uint64) {
	r.t.Helper()
	l := must.Get(InForce(r.limits, r.pace))(r.t)
	if first, d := l.Devices[0], l.Devices[1]; d.Core != core || d.MemoryBytes != mib<<20 || first.Core != 7 || first.MemoryBytes != 1<<30 {
		r.t.Errorf("in force are %+v, want %d percent and %d MiB of the second", l.Devices, core, mib)
	}
}

// word is one of the counters or of the pace file; the library's view is by the total.
func (r resized) word(path string, at int64) uint64 {
	r.t.Helper()
	b := must.Get(os.ReadFile(path))(r.t)
	return binary.LittleEndian.Uint64(b[at:])
}

func (r resized) total() uint64 { return r.word(r.counters, countersDevicesOff+countersDeviceSize) }

func (r resized) inForce() uint64 {
	return r.word(r.pace, paceDevicesOff+paceDeviceSize+paceLimitOff+8*int64(r.total()>>63))
}

// charge has the container charged so much, as its processes do.
func (r resized) charge(bytes uint64) {
	r.t.Helper()
	word := r.total()&^uint64(bytesMask) | bytes
	must.Get(r.process.WriteAt(binary.LittleEndian.AppendUint64(nil, word), countersDevicesOff+countersDeviceSize))(r.t)
}

func TestResize(t *testing.T) {
	r := newResized(t, 30)
	r.want(30, 100)
	for _, to := range []struct {
		core uint32
		mib  uint64
	}{{31, 101}, {100, 5000}, {1, 1}, {30, 100}, {30, 100}, {99, 40}} {
		must.Do(t, r.resize(to.core, to.mib))
		r.want(to.core, to.mib)
		if word := r.inForce(); word != to.mib<<20|uint64(to.core)<<48 {
			t.Errorf("the library sees %#x in force, want %+v", word, to)
		}
	}
	must.Do(t, r.resize(0, 0))
	r.want(30, 100)
}

// TestResize_WhenMoreIsUsed: a limit below what is charged is refused with the figure and
// nothing changes, not the core either; one of exactly that is in force.
func TestResize_WhenMoreIsUsed(t *testing.T) {
	r := newResized(t, 30)
	r.charge(60<<20 + 1)
	before, word := r.total(), r.inForce()
	err := r.resize(10, 60)
	infeasible, ok := errors.AsType[*InfeasibleError](err)
	if !ok || infeasible.UsedBytes != 60<<20+1 || infeasible.LimitBytes != 60<<20 || !strings.Contains(err.Error(), "61 MiB are in use") {
		t.Errorf("%v, want it infeasible with the figure", err)
	}
	r.want(30, 100)
	if r.total() != before || r.inForce() != word {
		t.Error("the counters or the limit in force have changed")
	}
	must.Do(t, r.resize(10, 61))
	r.want(10, 61)
	if r.total()&bytesMask != 60<<20+1 {
		t.Errorf("%d bytes are charged", r.total()&bytesMask)
	}
	r.charge(200 << 20) // a tenant that forges its total doesn't keep its core by that
	must.Do(t, r.resize(5, 61))
	must.Do(t, r.resize(5, 62))
	r.want(5, 62)
}

// TestResize_WhenProcessesHaveEnded: what they have left charged is in nobody's use, unless a
// descriptor may keep it; while one lives, the library alone knows whose it is.
func TestResize_WhenProcessesHaveEnded(t *testing.T) {
	r := newResized(t, 30)
	r.charge(60 << 20)
	mapped := must.Get(unix.Mmap(int(r.process.Fd()), 0, countersSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	infeasible := func(because string) {
		t.Helper()
		if _, is := errors.AsType[*InfeasibleError](r.resize(10, 50)); !is {
			t.Errorf("is in force, with %s", because)
		}
		r.want(30, 100)
	}
	infeasible("a process")
	must.Do(t, r.process.Close())
	infeasible("a process that has closed its descriptor")
	mapped[exportsOff] = 1
	must.Do(t, unix.Munmap(mapped))
	infeasible("memory that may be shared")
	f := must.Get(os.OpenFile(r.counters, os.O_WRONLY, 0))(t)
	must.Get(f.WriteAt([]byte{0}, exportsOff))(t)
	must.Do(t, f.Close())
	must.Do(t, r.resize(10, 50))
	r.want(10, 50)
	if r.total()&bytesMask != 60<<20 {
		t.Error("what is left is the library's to take off")
	}
}

// TestResize_WhenKilled: killed between any two steps, the limits of before or the new ones are
// in force, InForce says the larger, and a repeat puts the right ones in force. So does
// another call in its place.
func TestResize_WhenKilled(t *testing.T) {
	defer func() { step = func() {} }()
	kill := errors.New("killed")
	killed := func(r resized, at int, core uint32, mib uint64) (was bool) {
		defer func() { was = recover() == kill }()
		left := at
		step = func() {
			if left--; left < 0 {
				panic(kill)
			}
		}
		must.Report(r.t, r.resize(core, mib))
		return false
	}
	for at := 0; ; at++ {
		r := newResized(t, 30)
		r.charge(40 << 20)
		if !killed(r, at, 20, 50) {
			if at < 2 {
				t.Errorf("was killed at %d steps", at)
			}
			break
		}
		r.want(30, 100)
		if word := r.inForce(); word != 0 && word != 50<<20|20<<48 {
			t.Errorf("killed at step %d, the library sees %#x in force", at, word)
		}
		for _, next := range []struct {
			core uint32
			mib  uint64
		}{{20, 50}, {0, 0}, {90, 700}} {
			step = func() {}
			must.Do(t, r.resize(next.core, next.mib))
			if next.mib == 0 {
				next.core, next.mib = 30, 100
			}
			r.want(next.core, next.mib)
			killed(r, at, 20, 50)
		}
		step = func() {}
		if _, ok := errors.AsType[*InfeasibleError](r.resize(20, 39)); !ok {
			t.Error("a limit below what is used is in force after a kill")
		}

		// More, of which the ledger is to keep the larger; the library asks for a quota in force.
		r = newResized(t, 100)
		for _, to := range []uint32{90, 80} {
			killed(r, at, to, uint64(to)*10)
			r.want(100, uint64(to)*10)
			if core := r.inForce() >> limitCoreShift; core != 0 && r.word(r.pace, pacePlainsOff) == 0 {
				t.Errorf("%d percent are in force, and the library does not ask", core)
			}
			step = func() {}
			must.Do(t, r.resize(0, 0))
		}
	}
}

// TestResize_WhenChargedInBetween: a charge between the look at the total and the change is
// seen, by the compare-and-swap.
func TestResize_WhenChargedInBetween(t *testing.T) {
	defer func() { step = func() {} }()
	r := newResized(t, 30)
	charged := false
	step = func() {
		if !charged {
			charged = true
			r.charge(51 << 20)
		}
	}
	err := r.resize(20, 50)
	if infeasible, ok := errors.AsType[*InfeasibleError](err); !ok || infeasible.UsedBytes != 51<<20 {
		t.Errorf("%v, want it infeasible with 51 MiB", err)
	}
	r.want(30, 100)
	total := uint64(0)
	step = func() { total++; r.charge(total) }
	if err := r.resize(20, 50); err == nil {
		t.Error("put in force while the total changed all the time")
	}
	step = func() {}
	r.want(30, 100)
}

// TestResize_OfOtherFiles: what is damaged, or of a release that reads no such limits, or not
// the container's, is refused.
func TestResize_OfOtherFiles(t *testing.T) {
	r := newResized(t, 30)
	for _, to := range []DeviceLimit{{UUID: "GPU-00000000-0000-0000-0000-000000000000"}, {UUID: resizedGPU, Core: 101}, {UUID: resizedGPU, MemoryBytes: 1 << 48}} {
		if err := Resize(r.limits, r.counters, r.pace, to); err == nil {
			t.Errorf("%+v is in force", to)
		}
	}
	f := must.Get(os.OpenFile(r.pace, os.O_WRONLY, 0))(t)
	must.Get(f.WriteAt(make([]byte, 4), paceResizesOff))(t)
	must.Do(t, f.Close())
	if err := r.resize(10, 50); !errors.Is(err, ErrOlderLibrary) {
		t.Errorf("%v, want the library to be too old", err)
	}
	r.want(30, 100)
	old := make([]byte, pace3Size)
	le := binary.LittleEndian
	le.PutUint64(old, paceMagic)
	le.PutUint32(old[paceVersionOff:], 3)
	le.PutUint32(old[paceCountOff:], 2)
	must.Do(t, os.WriteFile(r.pace, old, 0o600))
	if err := r.resize(10, 50); !errors.Is(err, ErrOlderLibrary) {
		t.Errorf("%v, want the library of the release before to be too old", err)
	}
	r.want(30, 100)
	must.Do(t, CreatePace(r.pace, 2))
	must.Do(t, MarkDamaged(r.counters))
	if err := r.resize(10, 50); !errors.Is(err, errDamaged) {
		t.Errorf("%v, want the counters damaged", err)
	}
	must.Do(t, os.Truncate(r.counters, 1))
	if err := r.resize(10, 50); !errors.Is(err, errDamaged) {
		t.Errorf("%v, want the counters damaged", err)
	}
	r.want(30, 100)
}

// TestHostileResize: a tenant that truncates its counters while they are mapped doesn't end
// the agent.
func TestHostileResize(t *testing.T) {
	r := newResized(t, 30)
	err := withTotal(r.counters, 1, func(total *atomic.Uint64) error {
		must.Do(t, os.Truncate(r.counters, 0))
		total.Add(1)
		return nil
	})
	if !errors.Is(err, errDamaged) {
		t.Errorf("%v, want the counters damaged", err)
	}
}

// TestResize_OfNoQuota: the library of a container without a quota asks for one only where
// the pace file says so.
func TestResize_OfNoQuota(t *testing.T) {
	for _, file := range []uint32{0, 100, 30} {
		r := newResized(t, file)
		asks := func() bool { return r.word(r.pace, pacePlainsOff) != 0 }
		for _, core := range []uint32{40, 100, 99, 0, 1, file} {
			must.Do(t, r.resize(core, 100))
			if inForce := must.Get(InForce(r.limits, r.pace))(t).Devices[1].Core; asks() != (inForce%100 != 0 && file != 30) {
				t.Errorf("from %d to %d percent: the library asks: %t", file, core, asks())
			}
		}
	}
	r := newResized(t, 0)
	must.Do(t, r.resize(40, 100))
	p := must.Get(OpenPace(r.pace, 2))(t)
	p.SetPlain(1, 50)
	p.SetPlain(1, 0)
	must.Do(t, p.Close())
	if r.word(r.pace, pacePlainsOff) == 0 {
		t.Error("the end of neighbours has ended the quota in force")
	}
}
