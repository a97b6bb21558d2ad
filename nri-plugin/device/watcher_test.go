// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/v1alpha1"
)

// fake is an NVML whose next answers are set by the test.
type fake struct {
	Library

	mu     sync.Mutex
	scan   func() (Snapshot, error)
	memory func() (v1alpha1.MiB, error)
	events chan struct{}
	hangs  chan struct{} // until it is closed a wait for an event does not end, unless nil
}

func (f *fake) Scan() (Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.scan()
}

func (f *fake) Memory(string) (v1alpha1.MiB, error) { return f.memory() }

func (f *fake) WaitEvent(timeout time.Duration) bool {
	f.mu.Lock()
	hangs := f.hangs
	f.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	select {
	case <-f.events:
		return true
	case <-time.After(timeout):
		return false
	}
}

func (f *fake) shows(s Snapshot, err error) {
	f.mu.Lock()
	f.scan = func() (Snapshot, error) { return s, err }
	f.mu.Unlock()
	f.events <- struct{}{}
}

func one(d v1alpha1.DeviceStatus) Snapshot {
	d.UUID = "GPU-x"
	return Snapshot{Devices: []v1alpha1.DeviceStatus{d}}
}

// watch runs a watcher over the fake until the test ends. changed follows it.
func watch(t *testing.T, f *fake, w *Watcher) (changed chan struct{}, ended chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changed, ended = make(chan struct{}, 16), make(chan error, 1)
	w.Changed = func() { changed <- struct{}{} }
	w.Log = logr.Discard()
	w.Period = time.Hour // only events bring scans
	done := make(chan struct{})
	go func() {
		ended <- w.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return changed, ended
}

func newFake() *fake {
	return &fake{
		events: make(chan struct{}, 16),
		scan:   func() (Snapshot, error) { return one(v1alpha1.DeviceStatus{Healthy: true, Mem: 100}), nil },
		memory: func() (v1alpha1.MiB, error) { return 100, nil },
	}
}

// Events bring a scan, changes are told, and what is refined is what is seen.
func TestWatcher(t *testing.T) {
	f := newFake()
	w := &Watcher{
		Open:   func() (Library, error) { return f, nil },
		Refine: func(s *Snapshot) { s.Devices[0].Model = "refined" },
	}
	if _, scanned := w.Snapshot(); scanned || w.Err() == nil {
		t.Error("something is known before the first scan")
	}
	changed, _ := watch(t, f, w)
	<-changed
	if s, scanned := w.Snapshot(); !scanned || s.Devices[0].Model != "refined" || w.Err() != nil {
		t.Errorf("snapshot %+v, %t, %v", s, scanned, w.Err())
	}
	f.shows(one(v1alpha1.DeviceStatus{Reason: "Xid 79"}), nil)
	<-changed
	if s, _ := w.Snapshot(); s.Devices[0].Healthy || len(s.Usable()) != 0 {
		t.Errorf("snapshot %+v", s)
	}
	f.shows(Snapshot{}, errors.New("no driver"))
	<-changed
	if s, scanned := w.Snapshot(); !scanned || len(s.Devices) != 1 || w.Err() == nil {
		t.Errorf("after a failure: %+v, %t, %v; want the last picture and the error", s, scanned, w.Err())
	}
	f.shows(one(v1alpha1.DeviceStatus{Healthy: true}), nil)
	<-changed
	if w.Err() != nil {
		t.Errorf("after recovery: %v", w.Err())
	}
}

// Invariant 2: a driver that does not answer any more is not waited for. What it said
// last does not count until it answers again.
func TestWatcherSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := &Watcher{Open: func() (Library, error) { return f, nil }}
		changed, _ := watch(t, f, w)
		<-changed
		answer := make(chan struct{})
		f.mu.Lock()
		good := f.scan
		f.scan = func() (Snapshot, error) { <-answer; return good() }
		f.mu.Unlock()
		f.memory = func() (v1alpha1.MiB, error) { t.Error("a driver that hangs is asked"); return 0, nil }
		f.events <- struct{}{}
		<-changed
		if s, scanned := w.Snapshot(); !scanned || len(s.Devices) != 1 || w.Err() == nil {
			t.Errorf("%+v, %t, %v; want the last picture and the error", s, scanned, w.Err())
		}
		if err := w.Check("GPU-x", 100); err == nil || !strings.Contains(err.Error(), "has not answered for 30s") {
			t.Errorf("a device is taken for well: %v", err)
		}
		if _, err := w.Library(); err == nil {
			t.Error("it is given to others, who would hang in it")
		}
		close(answer)
		<-changed
		if _, err := w.Library(); err != nil || w.Err() != nil {
			t.Errorf("after the answer: %v, %v", err, w.Err())
		}
	})
}

// The same where the driver hangs while an event is waited for, and no scan comes.
func TestWatcherSilentBetweenScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := &Watcher{Open: func() (Library, error) { return f, nil }}
		changed, _ := watch(t, f, w)
		<-changed
		answer := make(chan struct{})
		f.mu.Lock()
		f.hangs = answer
		f.mu.Unlock()
		<-changed
		if _, err := w.Library(); err == nil || !strings.Contains(err.Error(), "has not answered for 30s") {
			t.Errorf("a device is taken for well: %v", err)
		}
		close(answer)
		<-changed
		if _, err := w.Library(); err != nil {
			t.Errorf("after the answer: %v", err)
		}
	})
}

// A driver that is replaced needs a new process.
func TestWatcherGivesUp(t *testing.T) {
	f := newFake()
	w := &Watcher{Open: func() (Library, error) { return f, nil }}
	changed, ended := watch(t, f, w)
	<-changed
	for range failedScans {
		f.shows(Snapshot{}, errors.New("version mismatch"))
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "version mismatch") {
		t.Errorf("%v", err)
	}
}

// Invariant 2: nothing is given of a device that is not seen to be right now.
func TestCheck(t *testing.T) {
	healthy := v1alpha1.DeviceStatus{Healthy: true, Mem: 100}
	cases := map[string]struct {
		shows  Snapshot
		err    error
		memory func() (v1alpha1.MiB, error)
		says   string
	}{
		"right":      {shows: one(healthy)},
		"NVML fails": {shows: one(healthy), err: errors.New("no driver"), says: "no driver"},
		"gone":       {shows: Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: "GPU-y", Healthy: true}}}, says: "not on this node"},
		"unhealthy":  {shows: one(v1alpha1.DeviceStatus{Reason: "Xid 48"}), says: "Xid 48"},
		"lost this moment": {shows: one(healthy),
			memory: func() (v1alpha1.MiB, error) { return 0, errors.New("GPU is lost") }, says: "GPU is lost"},
		"some MiB less": {shows: one(healthy), memory: func() (v1alpha1.MiB, error) { return 99, nil }},
		"more":          {shows: one(healthy), memory: func() (v1alpha1.MiB, error) { return 120, nil }},
		"smaller":       {shows: one(healthy), memory: func() (v1alpha1.MiB, error) { return 50, nil }, says: "50 MiB"},
	}
	for name, c := range cases {
		f := newFake()
		if c.memory != nil {
			f.memory = c.memory
		}
		w := &Watcher{}
		w.state.Store(&state{library: f, snapshot: c.shows, scanned: true, err: c.err})
		err := w.Check("GPU-x", 100)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if err := (&Watcher{}).Check("GPU-x", 100); err == nil {
		t.Error("Invariant 2: a device is right before NVML is open")
	}
}

// A driver that was replaced ends the watcher at once, while it is opened and later,
// and says so before.
func TestReplacedEndsIt(t *testing.T) {
	replaced := fmt.Errorf("the library: %w", ErrReplaced)
	f := newFake()
	w := &Watcher{Open: func() (Library, error) { return f, nil }}
	changed, ended := watch(t, f, w)
	<-changed
	f.shows(Snapshot{}, replaced)
	if err := <-ended; !errors.Is(err, ErrReplaced) || !errors.Is(w.Err(), ErrReplaced) {
		t.Errorf("ended with %v, shows %v", err, w.Err())
	}
	ended <- nil
	w = &Watcher{Open: func() (Library, error) { return nil, replaced }}
	_, ended = watch(t, newFake(), w)
	if err := <-ended; !errors.Is(err, ErrReplaced) || !errors.Is(w.Err(), ErrReplaced) {
		t.Errorf("ended with %v, shows %v", err, w.Err())
	}
	ended <- nil
}
