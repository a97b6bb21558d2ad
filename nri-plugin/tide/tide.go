// SPDX-License-Identifier: Apache-2.0

// Package tide owns the decision which idle slices of a node get no turn, and which are ended. It
// follows from the tide in the node's ledger and the time. So a restart loses nothing, and the API
// server is not asked.
//
// It keeps nothing and ends nothing.
package tide

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
)

// Device is a device with its idle slices.
type Device struct {
	UUID   string
	Mem    v1alpha1.MiB
	Slices []Slice
}

// Slice is an idle slice: what it adds to the sums of its device.
type Slice struct {
	Pod types.UID
	Ctr string
	// Idle is the percent of compute that it was placed for.
	Idle v1alpha1.Percent
	Mem  v1alpha1.MiB
	// Since is when it was granted, zero where that is not known: as if it were the oldest.
	Since time.Time
}

// Idle returns the devices of a ledger's spec that have idle slices, with these.
func Idle(spec *v1alpha1.SliceLedgerSpec) (devices []Device) {
	for i := range spec.Devices {
		d := Device{UUID: spec.Devices[i].UUID, Mem: spec.Devices[i].Mem}
		for _, s := range spec.Devices[i].Slices {
			if s.Idle == 0 {
				continue
			}
			is := Slice{Pod: s.Pod, Ctr: s.Ctr, Idle: s.Idle, Mem: s.Mem - s.ReuseMem}
			if s.Since != nil {
				is.Since = s.Since.Time
			}
			d.Slices = append(d.Slices, is)
		}
		if len(d.Slices) > 0 {
			devices = append(devices, d)
		}
	}
	return devices
}

// On is a slice on a device.
type On struct {
	UUID string
	Slice
}

// Decide returns the idle slices that get no turn now, the youngest of each device first, and which of
// them are to be ended. The youngest are shut until the sums of the others are within what the tide
// allows. They are ended once the grace is over, by the latest of the clocks. By a clock that cannot
// be trusted all beyond what is lent outside are shut.
//
// t is nil where no tide selects the node: then there are none.
func Decide(t *v1alpha1.LedgerTide, devices []Device, now servertime.Reading) (shut, end []On) {
	if t == nil {
		return nil, nil
	}
	core, mem := t.Allows(now.Now)
	inGrace := now.Now.Before(t.ReclaimBy(now.Now))
	for i := range devices {
		d := &devices[i]
		beyond := d.beyond(core, mem)
		if !inGrace {
			end = append(end, beyond...)
		}
		if !now.Trusted() {
			beyond = d.beyond(min(core, t.Outside.Core), min(mem, t.Outside.Mem))
		}
		shut = append(shut, beyond...)
	}
	return shut, end
}

// Younger compares slices: the one that was granted last comes first.
func Younger(a, b Slice) int {
	return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(b.Pod, a.Pod), cmp.Compare(b.Ctr, a.Ctr))
}

// beyond are the youngest slices without which the sums of the others are within percent of the device.
func (d *Device) beyond(core, mem v1alpha1.Percent) (beyond []On) {
	most, err := mem.Of(d.Mem)
	if err != nil {
		most = 0 // neither is ever out of its range in a ledger
	}
	var idle v1alpha1.Percent
	var has v1alpha1.MiB
	for i := range d.Slices {
		idle, has = idle+d.Slices[i].Idle, has+d.Slices[i].Mem
	}
	if idle <= core && has <= most {
		return nil
	}
	youngest := slices.Clone(d.Slices)
	slices.SortFunc(youngest, Younger)
	for i := 0; i < len(youngest) && (idle > core || has > most); i++ {
		s := youngest[i]
		idle, has = idle-s.Idle, has-s.Mem
		beyond = append(beyond, On{d.UUID, s})
	}
	return beyond
}
