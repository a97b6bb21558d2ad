// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// spot is a place on a device.
type spot struct {
	device string
	v1alpha1.MIGPlace
}

// Prepare makes the instances of a container's slices that are not there.
func (m *Mode) Prepare(c mode.Container) error {
	changed, err := m.prepare(c)
	if changed {
		err = errors.Join(err, m.node.Devices.Refresh())
	}
	return err
}

func (m *Mode) prepare(c mode.Container) (changed bool, err error) {
	library, err := m.node.Devices.Library()
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted, known := m.wanted()
	for _, g := range c.Grants {
		place := spot{g.UUID, g.MIG}
		// The slices may be gone again.
		if !wanted[place] {
			continue
		}
		made, err := m.ensure(library, place, wanted, known)
		changed = changed || made
		if err != nil {
			return changed, fmt.Errorf("the MIG instance of profile %d at %d on device %s: %w", g.MIG.Profile, g.MIG.Start, g.UUID, err)
		}
	}
	return changed, nil
}

// ensure has a whole instance at the place. m.mu is held.
func (m *Mode) ensure(library device.Library, place spot, wanted map[spot]bool, known bool) (changed bool, err error) {
	all, err := library.Instances(place.device)
	if err != nil {
		return false, err
	}
	for _, i := range all {
		ours, unfinished := m.made.owns(place.device, i)
		switch {
		case i.MIGPlace == place.MIGPlace && ours && unfinished:
			return true, m.finish(library, place)
		case i.MIGPlace == place.MIGPlace && i.UUID != "":
			return false, nil
		case i.MIGPlace == place.MIGPlace:
			return false, errors.New("somebody else has cut up what lies there; destroy it, or delete the pod so that it is placed again")
		case !i.Overlaps(place.MIGPlace):
		case !ours || !known || wanted[spot{place.device, i.MIGPlace}]:
			return changed, fmt.Errorf("an instance of profile %d at %d is in its way; delete the pod so that it is placed again", i.Profile, i.Start)
		default:
			changed = true
			if err := m.destroy(library, spot{place.device, i.MIGPlace}); err != nil {
				return changed, err
			}
		}
	}
	if err := m.made.enter(place.device, place.MIGPlace, ""); err != nil {
		return changed, err
	}
	return true, m.finish(library, place)
}

// finish makes what is entered as unfinished, and enters it as whole.
func (m *Mode) finish(library device.Library, place spot) error {
	if err := library.CreateInstance(place.device, place.MIGPlace); err != nil {
		return err
	}
	all, err := library.Instances(place.device)
	if err != nil {
		return err
	}
	i, found := at(all, place.MIGPlace)
	if !found || i.UUID == "" {
		return errors.New("the driver made it and doesn't show it; check nvidia-smi mig -lgi on the node")
	}
	return m.made.enter(place.device, place.MIGPlace, i.UUID)
}

// destroy destroys what is ours at a place.
func (m *Mode) destroy(library device.Library, place spot) error {
	if err := m.made.going(place.device, place.MIGPlace); err != nil {
		return err
	}
	if err := library.DestroyInstance(place.device, place.MIGPlace); err != nil {
		return err
	}
	return m.made.remove(place.device, place.MIGPlace)
}

// Settle brings instances and slices together, to be called after every change of
// either. Beside what Sweep does, an instance that was prepared and has vanished, as
// by a reset of the device, is made again.
func (m *Mode) Settle() error {
	failed := []error{m.Sweep()}
	now, _ := m.node.Devices.Snapshot()
	m.node.Index().Each(func(key ledger.Key, grants []ledger.Grant) {
		if slices.ContainsFunc(grants, func(g ledger.Grant) bool { return missing(now, g) }) {
			failed = append(failed, m.Prepare(mode.Container{Pod: key.Pod, Name: key.Container, Grants: grants}))
		}
	})
	return errors.Join(failed...)
}

// missing reports whether a slice's instance is not in the picture of its device.
func missing(now device.Snapshot, g ledger.Grant) bool {
	d, found := now.Device(g.UUID)
	if !found || g.Mode != v1alpha1.ModeMIG || d.MIG != v1alpha1.MIGEnabled {
		return false
	}
	i, _ := at(d.Instances, g.MIG)
	return i.UUID == ""
}

// Sweep destroys our instances that no slice is on and no container has, also those
// that a crash has left half made.
func (m *Mode) Sweep() error {
	changed, err := m.sweep()
	if changed {
		err = errors.Join(err, m.node.Devices.Refresh())
	}
	return err
}

func (m *Mode) sweep() (changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted, known := m.wanted()
	if !known || len(m.made.entries) == 0 {
		return false, nil
	}
	library, err := m.node.Devices.Library()
	if err != nil {
		return false, err
	}
	var failed []error
	for _, e := range m.made.entries {
		place := spot{e.Device, e.Place}
		if wanted[place] {
			continue
		}
		all, err := library.Instances(e.Device)
		if err != nil {
			failed = append(failed, fmt.Errorf("device %s: %w", e.Device, err))
			continue
		}
		if i, found := at(all, e.Place); !found {
			err = m.made.remove(e.Device, e.Place)
		} else if ours, _ := m.made.owns(e.Device, i); ours {
			changed = true
			err = m.destroy(library, place)
		} else {
			err = m.made.remove(e.Device, e.Place)
		}
		failed = append(failed, err)
	}
	return changed, errors.Join(failed...)
}

// wanted are the places that slices are on, or containers that the ledger may have
// lost. known is false while the latter are unknown. m.mu is held.
func (m *Mode) wanted() (places map[spot]bool, known bool) {
	places = map[spot]bool{}
	add := func(grants []ledger.Grant) {
		for _, g := range grants {
			if g.Mode == v1alpha1.ModeMIG {
				places[spot{g.UUID, g.MIG}] = true
			}
		}
	}
	all, known := m.node.Containers()
	for _, c := range all {
		add(c.Grants)
	}
	m.node.Index().Each(func(_ ledger.Key, grants []ledger.Grant) { add(grants) })
	return places, known
}

// Mark tells in a fresh picture which instances are ours.
func (m *Mode) Mark(now *device.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for d := range now.Devices {
		for i := range now.Devices[d].Instances {
			instance := &now.Devices[d].Instances[i]
			instance.Own, _ = m.made.owns(now.Devices[d].UUID, *instance)
		}
	}
}
