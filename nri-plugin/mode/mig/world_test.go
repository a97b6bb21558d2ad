// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

const gpu = "GPU-0"

// Places on a device, of the profiles that it has.
var (
	one   = v1alpha1.MIGPlace{Profile: 19, Start: 6, Size: 1}
	two   = v1alpha1.MIGPlace{Profile: 14, Start: 4, Size: 2}
	three = v1alpha1.MIGPlace{Profile: 9, Start: 4, Size: 4}
	four  = v1alpha1.MIGPlace{Profile: 5, Start: 0, Size: 4}
)

// world is a node with one device in MIG mode, its ledger and its containers.
type world struct {
	*Mode
	t          *testing.T
	driver     *driver
	path       string
	slices     map[string]v1alpha1.MIGPlace // by the pod that has them
	containers []mode.Container
	blind      bool
	seen       device.Snapshot
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, driver: &driver{is: map[v1alpha1.MIGPlace]string{}}, path: filepath.Join(t.TempDir(), "mig.json"), slices: map[string]v1alpha1.MIGPlace{}}
	w.restart()
	return w
}

// restart is the agent's next process.
func (w *world) restart() {
	w.t.Helper()
	w.driver.dead, w.driver.crash = false, 0
	m := must.Get(New(w.path, Node{Devices: w, Index: w.index, Containers: func() ([]mode.Container, bool) { return w.containers, !w.blind }}))(w.t)
	w.Mode = m
	w.must(w.Refresh())
}

func (w *world) must(err error) {
	w.t.Helper()
	must.Do(w.t, err)
}

func (w *world) index() *ledger.Index {
	l := &v1alpha1.SliceLedger{}
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: gpu, Core: 100, Mem: 81920}}
	for _, pod := range slices.Sorted(maps.Keys(w.slices)) {
		place := w.slices[pod]
		l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices,
			v1alpha1.Slice{Pod: types.UID(pod), Owner: "team/" + pod, Ctr: "main", Core: 10, Mem: 1024, Mode: v1alpha1.ModeMIG, MIG: &place})
	}
	return ledger.NewIndex(l)
}

func (w *world) container(pod string) mode.Container {
	return mode.Container{Pod: types.UID(pod), Owner: "team/" + pod, Name: "main", ID: "id-" + pod,
		Grants: w.index().Grants(ledger.Key{Pod: types.UID(pod), Container: "main"})}
}

// grant gives a pod a slice, and the agent prepares it.
func (w *world) grant(pod string, place v1alpha1.MIGPlace) error {
	w.slices[pod] = place
	return w.Prepare(w.container(pod))
}

// drop takes a pod's slice out of the ledger, and the agent hears of it.
func (w *world) drop(pod string) error {
	delete(w.slices, pod)
	return w.Release(types.UID(pod))
}

// settle is what the agent does sooner or later after a restart.
func (w *world) settle() {
	w.t.Helper()
	w.must(w.Sweep())
	for _, pod := range slices.Sorted(maps.Keys(w.slices)) {
		w.must(w.Prepare(w.container(pod)))
	}
	w.must(w.Sweep())
}

func (w *world) Snapshot() (device.Snapshot, bool) { return w.seen, true }
func (w *world) Library() (device.Library, error)  { return w.driver, nil }
func (w *world) Refresh() error {
	all, err := w.driver.Instances(gpu)
	if err != nil {
		return err
	}
	w.seen = device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: gpu, MIG: v1alpha1.MIGEnabled, Instances: all,
		Profiles: []v1alpha1.MIGProfile{{ID: 19, Size: 1}, {ID: 14, Size: 2}, {ID: 9, Size: 4}, {ID: 5, Size: 4}}}}}
	w.Mark(&w.seen)
	return nil
}

// driver has the instances, by place; one without a UUID is a shell. It can be made
// to die at any step between two changes of what is there: that of the agent's
// process, as far as the agent can tell.
type driver struct {
	device.Library
	is     map[v1alpha1.MIGPlace]string
	busy   bool
	serial int

	crash, steps int
	dead         bool
}

var errDead = errors.New("the process has ended")

func (d *driver) step() error {
	d.steps++
	d.dead = d.dead || d.steps == d.crash
	if d.dead {
		return errDead
	}
	return nil
}

func (d *driver) Instances(string) ([]v1alpha1.MIGInstance, error) {
	if d.dead {
		return nil, errDead
	}
	var all []v1alpha1.MIGInstance
	for place, uuid := range d.is {
		all = append(all, v1alpha1.MIGInstance{MIGPlace: place, UUID: uuid})
	}
	slices.SortFunc(all, func(a, b v1alpha1.MIGInstance) int { return int(a.Start - b.Start) })
	return all, nil
}

func (d *driver) CreateInstance(_ string, at v1alpha1.MIGPlace) error {
	if err := d.step(); err != nil {
		return err
	}
	if _, shell := d.is[at]; !shell {
		for other := range d.is {
			if other.Overlaps(at) {
				return errors.New("INSUFFICIENT_RESOURCES")
			}
		}
		d.is[at] = ""
	}
	if err := d.step(); err != nil {
		return err
	}
	if d.is[at] == "" {
		d.serial++
		d.is[at] = fmt.Sprintf("MIG-%d", d.serial)
	}
	return d.step()
}

func (d *driver) DestroyInstance(_ string, at v1alpha1.MIGPlace) error {
	if err := d.step(); err != nil {
		return err
	}
	if d.busy {
		return errors.New("IN_USE")
	}
	if _, there := d.is[at]; !there {
		return nil
	}
	d.is[at] = ""
	if err := d.step(); err != nil {
		return err
	}
	delete(d.is, at)
	return d.step()
}
