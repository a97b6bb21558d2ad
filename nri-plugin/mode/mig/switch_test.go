// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// whole is a node with one device that is not in MIG mode.
type whole struct {
	*Switch
	d          v1alpha1.DeviceStatus
	ledger     v1alpha1.SliceLedger // as the agent has seen it last
	late       []v1alpha1.Slice     // what it has besides, when it is read then
	containers []mode.Container
	blind, off bool
	pids       []int
	refuses    error
	unwritten  error

	seen     device.Snapshot
	shown    v1alpha1.DeviceStatus // in the ledger's status
	switched int
	told     []string
}

func newWhole() *whole {
	w := &whole{d: v1alpha1.DeviceStatus{UUID: gpu, MIG: v1alpha1.MIGDisabled, Healthy: true}}
	w.ledger.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: gpu, Core: 100, Mem: 81920}}
	w.Switch = &Switch{
		Node: Node{Devices: w, Index: func() *ledger.Index { return ledger.NewIndex(&w.ledger) },
			Containers: func() ([]mode.Container, bool) { return w.containers, !w.blind }},
		Wanted: func() bool { return !w.off },
		Withdraw: func(context.Context) (*v1alpha1.SliceLedger, error) {
			w.shown = w.seen.Devices[0]
			l := w.ledger.DeepCopy()
			l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, w.late...)
			return l, w.unwritten
		},
		Tell: func(action, message string) { w.told = append(w.told, action+": "+message) },
	}
	_ = w.Refresh() // it never fails
	return w
}

func (w *whole) Snapshot() (device.Snapshot, bool) { return w.seen, true }
func (w *whole) Library() (device.Library, error)  { return asked{whole: w}, nil }
func (w *whole) Refresh() error {
	w.seen = device.Snapshot{Devices: []v1alpha1.DeviceStatus{w.d}}
	w.Mark(&w.seen)
	return nil
}

// asked is the device's library; the rest of it is not called.
type asked struct {
	device.Library
	whole *whole
}

func (a asked) Processes(string) ([]int, error) { return a.whole.pids, nil }
func (a asked) EnableMIG(string) error {
	w := a.whole
	if w.shown.Healthy {
		return errors.New("slices may be granted on it")
	}
	w.switched++
	if w.refuses == nil {
		w.d.MIG = v1alpha1.MIGEnabled
	}
	return w.refuses
}

// Invariant: a device is put into MIG mode only where that is wanted and nothing is on
// it, by whatever word, the last of which is the ledger's after nothing more can come.
func TestSwitchOnlyWhatIsIdle(t *testing.T) {
	slice := v1alpha1.Slice{Pod: "a", Owner: "team/a", Ctr: "main", Core: 10, Mem: 1024}
	for name, spoil := range map[string]func(w *whole){
		"not wanted":               func(w *whole) { w.off = true },
		"a slice":                  func(w *whole) { w.ledger.Spec.Devices[0].Slices = []v1alpha1.Slice{slice} },
		"a slice that came late":   func(w *whole) { w.late = []v1alpha1.Slice{slice} },
		"a container":              func(w *whole) { w.containers = []mode.Container{{Grants: []ledger.Grant{{UUID: gpu}}}} },
		"the runtime out of sight": func(w *whole) { w.blind = true },
		"a process":                func(w *whole) { w.pids = []int{7} },
		"MPS":                      func(w *whole) { w.d.MPS = true },
		"unhealthy":                func(w *whole) { w.d.Healthy = false },
		"in MIG mode":              func(w *whole) { w.d.MIG = v1alpha1.MIGEnabled },
		"without MIG":              func(w *whole) { w.d.MIG = v1alpha1.MIGUnsupported },
		"the ledger unwritten":     func(w *whole) { w.unwritten = errors.New("conflict") },
	} {
		w := newWhole()
		spoil(w)
		_ = w.Refresh()
		was := w.seen.Devices[0]
		err := w.Look(t.Context(), time.Now())
		if w.switched != 0 || (err != nil) != (w.unwritten != nil) || len(w.told) != 0 {
			t.Errorf("%s: switched %d times, %v, told %q", name, w.switched, err, w.told)
		}
		if now := w.seen.Devices[0]; now.Healthy != was.Healthy || now.Reason != was.Reason {
			t.Errorf("%s: it is left as %+v", name, now)
		}
	}
}

// An idle device is switched once, while nothing can be granted on it; one that the
// driver does not switch is left alone for some minutes, and why is told.
func TestSwitch(t *testing.T) {
	w, now := newWhole(), time.Now()
	for range 2 {
		must.Do(t, w.Look(t.Context(), now))
	}
	if d := w.seen.Devices[0]; w.switched != 1 || d.MIG != v1alpha1.MIGEnabled || !d.Healthy || len(w.told) != 1 || !strings.HasPrefix(w.told[0], "SwitchedGPU0: ") {
		t.Errorf("switched %d times, %+v, told %q", w.switched, d, w.told)
	}

	w = newWhole()
	w.refuses = errors.New("somebody watches it")
	for _, at := range []time.Time{now, now.Add(switchAgain - time.Second), now.Add(switchAgain)} {
		must.Do(t, w.Look(t.Context(), at))
	}
	w.refuses = device.ErrUnsupported
	for _, days := range []int{1, 2, 3} {
		must.Do(t, w.Look(t.Context(), now.AddDate(0, 0, days)))
	}
	if w.switched != 3 || len(w.told) != 3 || !strings.HasPrefix(w.told[0], "LeftGPU0: ") || !strings.Contains(w.told[0], "somebody watches it") || !w.seen.Devices[0].Healthy {
		t.Errorf("switched %d times, told %q, %+v", w.switched, w.told, w.seen.Devices)
	}
}
