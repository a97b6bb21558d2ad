// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Room is the node as the placement engine sees it: the devices that may take
// slices now, and what is free on each. Nil while the node is not ready
// or its agent is not reachable.
func Room(ledger *v1alpha1.SliceLedger) *placement.Node {
	if ledger.DeletionTimestamp != nil || !ledger.Status.TakesSlices() {
		return nil
	}
	var taken []string
	for _, uuid := range Ungranted(ledger) {
		taken = append(taken, uuid)
	}
	return devices(ledger, func(seen *v1alpha1.DeviceStatus) bool {
		return seen.Healthy && ledger.Spec.Cordon(seen.UUID) == nil && !slices.Contains(taken, seen.UUID)
	})
}

// Bare is the node with all of its devices, as if nothing were granted and nothing kept them from
// taking slices.
func Bare(ledger *v1alpha1.SliceLedger) *placement.Node {
	bare := &v1alpha1.SliceLedger{ObjectMeta: ledger.ObjectMeta, Status: ledger.Status}
	bare.Status.Slices = nil
	return devices(bare, func(*v1alpha1.DeviceStatus) bool { return true })
}

// Withheld says what is not granted of the nodes because their agents are not ready or not
// reachable, or because it is cordoned. It has how much, and the first by name. Empty
// when there is nothing.
func Withheld(ledgers iter.Seq[*v1alpha1.SliceLedger]) string {
	var away, cordoned first
	for l := range ledgers {
		c := l.Status.Readiness()
		switch {
		case c == nil:
			away.add(l.Name + ": the node agent has not reported yet")
		case !l.Status.TakesSlices():
			away.add(l.Name + ": " + cmp.Or(c.Message, c.Reason))
		default:
			for i := range l.Status.Devices {
				if d := &l.Status.Devices[i]; l.Spec.Cordon(d.UUID) != nil {
					cordoned.add(fmt.Sprintf("%s GPU %d, %s", l.Name, d.Index, l.Spec.Cordon(d.UUID)))
				}
			}
		}
	}
	var all []string
	if away.n > 0 {
		all = append(all, fmt.Sprintf("%d node(s) grant nothing now, such as %s", away.n, away.text))
	}
	if cordoned.n > 0 {
		all = append(all, fmt.Sprintf("%d GPU(s) are cordoned, such as %s", cordoned.n, cordoned.text))
	}
	return strings.Join(all, "; ")
}

// WouldDo reports whether a node that grants nothing now, or one with a cordoned GPU, would do for the
// demand if it granted all.
func WouldDo(demand *placement.Demand, ledgers iter.Seq[*v1alpha1.SliceLedger]) bool {
	for l := range ledgers {
		if (!l.Status.TakesSlices() || len(l.Spec.Cordons) > 0) && placement.Fits(demand, Unfiltered(l)) {
			return true
		}
	}
	return false
}

// first counts texts, and keeps the first in order.
type first struct {
	n    int
	text string
}

func (f *first) add(text string) {
	if f.n == 0 || text < f.text {
		f.text = text
	}
	f.n++
}

// Unfiltered is the node with all devices, whatever their state: for writing down
// what is so already.
func Unfiltered(ledger *v1alpha1.SliceLedger) *placement.Node {
	return devices(ledger, func(*v1alpha1.DeviceStatus) bool { return true })
}

// Ungranted yields the pods, each with a device, that have a container which uses the
// device although the ledger grants that container nothing on it. Its slices were
// lost. How much it uses is not known any more. The slices that another container of the pod
// has on the device are of no help to it. Some may come more than once.
func Ungranted(ledger *v1alpha1.SliceLedger) iter.Seq2[types.UID, string] {
	return func(yield func(types.UID, string) bool) {
		var device *v1alpha1.DeviceLedger
		for i := range ledger.Status.Slices {
			s := &ledger.Status.Slices[i]
			// As a rule the next is of the same device.
			if device == nil || device.UUID != s.UUID {
				device = find(ledger, s.UUID)
			}
			if (device == nil || !granted(device, s)) && !yield(s.Pod, s.UUID) {
				return
			}
		}
	}
}

func find(ledger *v1alpha1.SliceLedger, uuid string) *v1alpha1.DeviceLedger {
	for i := range ledger.Spec.Devices {
		if d := &ledger.Spec.Devices[i]; d.UUID == uuid {
			return d
		}
	}
	return nil
}

func granted(d *v1alpha1.DeviceLedger, used *v1alpha1.SliceStatus) bool {
	return slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == used.Pod && s.Ctr == used.Ctr })
}

func devices(ledger *v1alpha1.SliceLedger, usable func(*v1alpha1.DeviceStatus) bool) *placement.Node {
	node := &placement.Node{Name: ledger.Name, Devices: make([]placement.Device, 0, len(ledger.Status.Devices))}
	near := ledger.Status.Near()
	for i := range ledger.Status.Devices {
		seen := &ledger.Status.Devices[i]
		if seen.Mem < 1 || !usable(seen) {
			continue
		}
		d := placement.Device{
			UUID: seen.UUID, Model: seen.Model, Index: seen.Index, Mem: seen.Mem,
			FreeCore: v1alpha1.WholeGPU, FreeMem: seen.Mem, Slots: v1alpha1.MaxSlicesPerDevice,
			FreeIdle: v1alpha1.WholeGPU, FreeIdleMem: seen.Mem, Lendable: seen.Lendable,
		}
		if t := ledger.Spec.Tide; t != nil {
			// As long as its window lasts: see scheduling.
			d.FreeIdle = min(d.FreeIdle, t.Core)
			d.FreeIdleMem, _ = t.Mem.Of(seen.Mem) // it is within its range
		}
		if i < len(near) {
			d.Near = near[i]
		}
		var given []v1alpha1.Slice
		if granted := find(ledger, seen.UUID); granted != nil {
			subtract(&d, granted)
			given = granted.Slices
		}
		busy := v1alpha1.WholeGPU - d.FreeCore
		if seen.ExpectedBusy != nil {
			busy = *seen.ExpectedBusy
		}
		if core := ledger.Spec.OvercommitCore; core > 0 {
			d.OvercommitCore, d.Expected = core, expected(ledger, seen, given)
		}
		d.Idle += v1alpha1.WholeGPU - busy // less that of idle slices, which are taken off
		mps(&d, ledger.Status.Driver.MPS, given)
		if cut(&d, seen, given) {
			node.Devices = append(node.Devices, d)
		}
	}
	return node
}

// expected is how much of a device's compute is expected to be used. Of slices that the node agent does not
// report yet it is all that they ask for.
func expected(ledger *v1alpha1.SliceLedger, seen *v1alpha1.DeviceStatus, given []v1alpha1.Slice) (sum v1alpha1.Percent) {
	if seen.ExpectedBusy != nil {
		sum = *seen.ExpectedBusy
	}
	for i := range given {
		s := &given[i]
		if seen.ExpectedBusy == nil || !slices.ContainsFunc(ledger.Status.Slices, func(is v1alpha1.SliceStatus) bool {
			return is.Pod == s.Pod && is.Ctr == s.Ctr && is.UUID == seen.UUID
		}) {
			sum += s.Of().Core
		}
	}
	return sum
}

// cut says what a device in MIG mode is cut into. False when nothing is to be
// granted there: with MIG on nothing runs outside of an instance, so a device whose
// mode was switched under its slices is none that takes others, until they are gone.
func cut(d *placement.Device, seen *v1alpha1.DeviceStatus, given []v1alpha1.Slice) bool {
	on := seen.MIG == v1alpha1.MIGEnabled
	var places []v1alpha1.MIGPlace
	for i := range given {
		place := given[i].MIG
		if on != (place != nil) {
			return false
		}
		if on {
			places = append(places, *place)
		}
	}
	if on {
		d.Cut = placement.NewCut(seen.Profiles, seen.Instances, places)
	}
	return !on || len(seen.Profiles) > 0
}

// mps says what of the modes beside MIG the device takes. A process that MPS serves
// has the device to itself but for others that MPS serves, so slices of the two kinds
// exclude each other, and a device goes from one to the other when it is empty.
func mps(d *placement.Device, has bool, given []v1alpha1.Slice) {
	d.MPS = has
	for i := range given {
		if given[i].Mode == v1alpha1.ModeMPS {
			d.MPSOnly = true
		} else {
			d.MPS = false
		}
	}
	if d.MPSOnly {
		d.Slots -= v1alpha1.MaxSlicesPerDevice - v1alpha1.MaxMPSSlices
	}
}

// subtract takes what is granted off the device's room. While a device has
// slices the smaller of both capacities holds: the ledger's, which the API server
// checks against, and the node's.
func subtract(d *placement.Device, granted *v1alpha1.DeviceLedger) {
	if len(granted.Slices) > 0 {
		d.FreeCore, d.FreeMem = min(d.FreeCore, granted.Core), min(d.FreeMem, granted.Mem)
	}
	for i := range granted.Slices {
		d.SetFree(d.Free().Minus(placement.AmountOf(&granted.Slices[i])))
		d.TakeIdle(&granted.Slices[i])
	}
}

// roomier reports whether now has room somewhere that before had not, or devices that are near
// others: only then can a pod that waits for a device be helped.
func roomier(before, now *placement.Node) bool {
	if now == nil {
		return false
	}
	for i := range now.Devices {
		d := &now.Devices[i]
		b := before.Device(d.UUID)
		if b == nil || d.FreeCore > b.FreeCore || d.FreeMem > b.FreeMem || d.FreeIdle > b.FreeIdle || d.FreeIdleMem > b.FreeIdleMem || d.FreeMem+d.Lendable > b.FreeMem+b.Lendable || d.OvercommitCore > b.OvercommitCore || d.OvercommitCore > 0 && d.Expected < b.Expected || d.Slots > b.Slots || d.MPS && !b.MPS || b.MPSOnly && !d.MPSOnly || d.Model != b.Model || d.Near != b.Near || !d.Cut.Equal(b.Cut) {
			return true
		}
	}
	return false
}
