// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	gpuA = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	gpuB = "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
)

// files is a container on disk, as its processes and the loop see it.
type files struct {
	t   *testing.T
	dir string
	*Container
}

func attach(t *testing.T, l *Loop, devices ...layout.DeviceLimit) files {
	t.Helper()
	f := files{t: t, dir: t.TempDir()}
	for i := range devices {
		devices[i].MemoryBytes = 1
	}
	err := layout.WriteFile(f.path("limits"), layout.Limits{Container: "c", Devices: devices})
	if err == nil {
		err = layout.CreateCounters(f.path("counters"), len(devices))
	}
	if err == nil {
		err = layout.CreatePace(f.path("pace"), len(devices))
	}
	if err == nil {
		f.Container, err = l.Attach(f.path("limits"), f.path("counters"), f.path("pace"))
	}
	must.Do(t, err)
	t.Cleanup(f.Detach)
	return f
}

func (f files) path(name string) string { return filepath.Join(f.dir, name) }

// launch writes into the counters what the library does at a launch. The offset
// is one that the ABI test of package layout holds.
func (f files) launch(device int, at time.Duration) {
	f.t.Helper()
	file, err := os.OpenFile(f.path("counters"), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(at)), int64(64+128*device+96))
		_ = file.Close()
	}
	must.Do(f.t, err)
}

// charge writes into the calendar of device 0 what the library does.
func (f files) charge(number uint64, ns time.Duration) {
	f.t.Helper()
	file, err := os.OpenFile(f.path("counters"), os.O_WRONLY, 0)
	if err == nil {
		cell := uint32(number/layout.CalendarCells&0xffff)<<16 | uint32(ns/2)
		_, err = file.WriteAt(binary.LittleEndian.AppendUint32(nil, cell), 626688+int64(number%layout.CalendarCells)*4)
		_ = file.Close()
	}
	must.Do(f.t, err)
}

// returned is what the pace file says of device 0.
func (f files) returned() time.Duration {
	f.t.Helper()
	b := must.Get(os.ReadFile(f.path("pace")))(f.t)
	return time.Duration(binary.LittleEndian.Uint64(b[64+16:]))
}

// turn reads from the pace file what the library would.
func (f files) turn(device int) (core, neighbours uint64, period, until time.Duration) {
	f.t.Helper()
	b := must.Get(os.ReadFile(f.path("pace")))(f.t)
	words := b[64+64*device:] // as layout.Turn's word and Pace.Set have it
	word := binary.LittleEndian.Uint64(words)
	return word & 0x7f, word >> 7 & 1, time.Duration(word>>28&0xfffff) * time.Microsecond, time.Duration(binary.LittleEndian.Uint64(words[8:]))
}

// TestLoop: containers are neighbours per device; idle time goes to one that may
// burst until, one step after the other's launch, the other has its share back.
func TestLoop(t *testing.T) {
	l := New()
	clock := now
	l.now = func() time.Duration { return clock }
	a := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 30, MayBurst: true}, layout.DeviceLimit{UUID: gpuB, Core: 50})
	b := attach(t, l, layout.DeviceLimit{UUID: gpuB, Core: 40}, layout.DeviceLimit{UUID: gpuA, Core: 60})
	if busy, _ := l.step(); busy {
		t.Error("busy with nobody working")
	}
	a.launch(0, clock)
	if busy, _ := l.step(); !busy {
		t.Error("not busy with somebody bursting")
	}
	want := func(f files, device int, core, neighbours uint64, length, until time.Duration) {
		t.Helper()
		if c, n, p, u := f.turn(device); c != core || n != neighbours || u != until || p != length {
			t.Errorf("core %d, neighbours %d, period %v until %v, want %d, %d, %v until %v", c, n, p, u, core, neighbours, length, until)
		}
	}
	want(a, 0, 100, 0, period, clock+Validity)
	want(a, 1, 50, 0, period, clock+Validity)
	want(b, 1, 60, 1, period, clock+Validity)
	clock += tick
	a.launch(0, clock)
	b.launch(1, clock)
	l.step()
	want(a, 0, 35, 1, 2*period, clock+Validity)
	want(b, 0, 40, 0, period, clock+Validity)
	want(b, 1, 60, 1, 2*period, clock+Validity)
	b.Detach()
	b.Detach()
	want(b, 1, 0, 0, 0, 0)
	clock += tick
	l.step()
	want(a, 0, 100, 0, period, clock+Validity)
}

// TestLoop_WhenResized: turns and idle time go by the percentages in force from the next step on.
func TestLoop_WhenResized(t *testing.T) {
	l := New()
	l.now = func() time.Duration { return now }
	a := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 30, MayBurst: true})
	b := attach(t, l, layout.DeviceLimit{UUID: gpuA})
	a.launch(0, now)
	b.launch(0, now)
	want := func(first, second uint64) {
		t.Helper()
		l.step()
		if core, _, _, _ := a.turn(0); core != first {
			t.Errorf("core %d of the first, want %d", core, first)
		}
		if core, _, _, _ := b.turn(0); core != second {
			t.Errorf("core %d of the second, want %d", core, second)
		}
	}
	resize := func(f files, core uint32) {
		t.Helper()
		must.Do(t, layout.Resize(f.path("limits"), f.path("counters"), f.path("pace"), layout.DeviceLimit{UUID: gpuA, Core: core}))
	}
	want(95, 100)
	resize(b, 40)
	want(55, 40)
	resize(a, 20)
	want(55, 40)
	resize(b, 75)
	want(20, 75)
}

// TestLoopSurvivesTenants: a container that cuts its counters short harms nobody.
func TestLoopSurvivesTenants(t *testing.T) {
	l := New()
	l.now = func() time.Duration { return now }
	a := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 30})
	b := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 60}, layout.DeviceLimit{UUID: gpuB})
	a.launch(0, now)
	b.launch(0, now)
	must.Do(t, os.Truncate(b.path("counters"), 100))
	l.step()
	if core, neighbours, _, _ := a.turn(0); core != 30 || neighbours != 0 {
		t.Errorf("core %d, neighbours %d, want 30 and none", core, neighbours)
	}
}

// TestAttachRefuses: files that aren't there, or aren't a container's of this release; in an
// earlier one's counters the calendars were elsewhere.
func TestAttachRefuses(t *testing.T) {
	l := New()
	a := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 30})
	must.Do(t, layout.CreatePace(a.path("two"), 2))
	earlier := must.Get(os.ReadFile(a.path("counters")))(t)
	binary.LittleEndian.PutUint32(earlier[8:], binary.LittleEndian.Uint32(earlier[8:])-1)
	must.Do(t, os.WriteFile(a.path("earlier"), earlier, 0o600))
	for _, paths := range [][3]string{{"none", "counters", "pace"}, {"limits", "none", "pace"}, {"limits", "earlier", "pace"}, {"limits", "counters", "none"}, {"limits", "counters", "limits"}, {"limits", "counters", "two"}} {
		if _, err := l.Attach(a.path(paths[0]), a.path(paths[1]), a.path(paths[2])); err == nil {
			t.Errorf("attached %v", paths)
		}
	}
}

// TestOthersWorkIsReturned: what two containers were charged together beyond the clock
// is returned to them, once.
func TestOthersWorkIsReturned(t *testing.T) {
	l := New()
	clock := now
	l.now = func() time.Duration { return clock }
	a := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 30})
	b := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 60})
	number := uint64(now / layout.CalendarCell)
	for range 2 {
		a.charge(number, layout.CalendarCell)
		b.charge(number, layout.CalendarCell/2)
		clock += settles
		a.launch(0, clock)
		b.launch(0, clock)
		l.step()
		for f, want := range map[files]time.Duration{a: layout.CalendarCell / 3, b: layout.CalendarCell / 6} {
			if got := f.returned(); got > want || got < want-2*time.Nanosecond {
				t.Errorf("%v is returned, want %v", got, want)
			}
		}
	}
}

// TestHostileCountersGoBack: a container whose counters go back that only grow is refused
// CUDA from then on, whatever it writes; one that has worked all the time is not.
func TestHostileCountersGoBack(t *testing.T) {
	const refusals, peak, throttled, launches = 8, 24, 80, 88
	for _, word := range []int64{refusals, peak, throttled, launches} {
		l := New()
		honest := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 30})
		hostile := attach(t, l, layout.DeviceLimit{UUID: gpuB, Core: 30}, layout.DeviceLimit{UUID: gpuA, Core: 30})
		write := func(f files, device int, n uint64) {
			t.Helper()
			file, err := os.OpenFile(f.path("counters"), os.O_WRONLY, 0)
			if err == nil {
				_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 64+128*int64(device)+word)
				_ = file.Close()
			}
			must.Do(t, err)
		}
		damaged := func(f files) bool {
			t.Helper()
			b := must.Get(os.ReadFile(f.path("pace")))(t)
			_, err := layout.OpenCounters(f.path("counters"))
			if is := binary.LittleEndian.Uint64(b[32:]) != 0; is == (err == nil) {
				t.Errorf("word %d: the pace says damaged %v, the counters %v", word, is, err)
			}
			return err != nil
		}
		for n := range uint64(5) {
			write(honest, 0, n)
			write(hostile, 1, n)
			l.step()
		}
		write(hostile, 1, 3)
		l.step() // a word that was being written, for all it knows
		write(hostile, 1, 4)
		l.step()
		// The upper half of 1<<32 with the lower one of before.
		for _, n := range []uint64{1<<32 - 1, 1<<33 - 1, 1 << 32, 1<<32 + 1} {
			write(honest, 0, n)
			l.step()
		}
		if damaged(hostile) {
			t.Errorf("word %d: refused for one look", word)
		}
		write(hostile, 1, 3)
		l.step()
		l.step()
		write(hostile, 1, 1000)
		l.step()
		if !damaged(hostile) || damaged(honest) {
			t.Errorf("word %d: went back in one container, refused are %v and %v", word, damaged(hostile), damaged(honest))
		}
	}
}
