// SPDX-License-Identifier: Apache-2.0

// Package grants owns the edits of a ledger's spec: write a pod's slices in, take
// them out, find them. It works on one SliceLedger in memory.
//
// It never writes to the API server, and it never edits a status. The API
// server's own rules judge the result once more.
package grants

import (
	"fmt"
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Grant writes the plan's slices for the pod into the spec, as granted at that time, to the
// second; zero is not known. A device that had no slices is entered with the capacity that
// the status shows.
func Grant(ledger *v1alpha1.SliceLedger, pod types.UID, owner string, plan placement.Plan, at time.Time) error {
	var since *metav1.Time
	if !at.IsZero() {
		since = &metav1.Time{Time: at.Truncate(time.Second)}
	}
	for _, g := range plan.Grants {
		device, err := entry(ledger, g.UUID)
		if err != nil {
			return err
		}
		s := v1alpha1.Slice{
			Pod: pod, Owner: owner, Ctr: g.Container,
			Core: g.Core, Mem: g.Mem, ReuseCore: g.ReuseCore, ReuseMem: g.ReuseMem, Asked: g.Asked, Idle: g.Idle, Since: since,
		}
		if g.Mode != v1alpha1.ModeLimiter {
			s.Mode = g.Mode
		}
		if g.Mode == v1alpha1.ModeMIG {
			s.MIG = &g.MIG
		}
		device.Slices = append(device.Slices, s)
	}
	return nil
}

// Regrant is Grant for a pod that had slices before, or has lost them. One that stays on its
// device keeps its time. A lost one of a container in keep has none: its pod may have had the device
// for long. Any other begins at that time.
func Regrant(ledger, before *v1alpha1.SliceLedger, pod types.UID, owner string, plan placement.Plan, keep map[string][]placement.Has, at time.Time) error {
	if err := Grant(ledger, pod, owner, plan, at); err != nil {
		return err
	}
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		for j := range d.Slices {
			s := &d.Slices[j]
			if s.Pod != pod {
				continue
			}
			if was := sliceOn(before, d.UUID, pod, s.Ctr); was != nil {
				if s.Since = was.Since; was.Asked != nil && was.Of() == s.Of() {
					// Its amounts may be in force already, or about to be.
					s.Core, s.Mem, s.Asked, s.Resize = was.Core, was.Mem, was.Asked, was.Resize
				}
			} else if keep[s.Ctr] != nil {
				s.Since = nil
			}
		}
	}
	return nil
}

// Recount sets what the pod's slices reuse of each other, after their amounts have changed.
func Recount(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) {
	containers := podrequest.ContainersOf(pod)
	for i := range ledger.Spec.Devices {
		var of []*v1alpha1.Slice
		for j := range ledger.Spec.Devices[i].Slices {
			if s := &ledger.Spec.Devices[i].Slices[j]; s.Pod == pod.UID {
				of = append(of, s)
			}
		}
		placement.Recount(containers, of)
	}
}

// sliceOn is the container's slice of the device, nil without one.
func sliceOn(ledger *v1alpha1.SliceLedger, uuid string, pod types.UID, ctr string) *v1alpha1.Slice {
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		if d.UUID != uuid {
			continue
		}
		for j := range d.Slices {
			if s := &d.Slices[j]; s.Pod == pod && s.Ctr == ctr {
				return s
			}
		}
	}
	return nil
}

// entry is the device's entry in the spec.
func entry(ledger *v1alpha1.SliceLedger, uuid string) (*v1alpha1.DeviceLedger, error) {
	seen := slices.IndexFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid })
	if seen < 0 {
		return nil, fmt.Errorf("ledger %s: device %s is not in status.devices", ledger.Name, uuid)
	}
	mem := ledger.Status.Devices[seen].Mem
	devices := &ledger.Spec.Devices
	for i := range *devices {
		if d := &(*devices)[i]; d.UUID == uuid {
			if len(d.Slices) == 0 {
				d.Core, d.Mem = v1alpha1.WholeGPU, mem
			}
			return d, nil
		}
	}
	*devices = append(*devices, v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: mem})
	return &(*devices)[len(*devices)-1], nil
}

// Release takes out all slices of the pods that drop names, with what is held for
// them. It removes the entries of devices that have no slices and that the node no longer
// has. It reports whether anything changed.
func Release(ledger *v1alpha1.SliceLedger, drop func(types.UID) bool) bool {
	changed := Commit(ledger, drop)
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		before := len(d.Slices)
		d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return drop(s.Pod) })
		changed = changed || len(d.Slices) != before
	}
	if changed {
		ledger.Spec.Devices = slices.DeleteFunc(ledger.Spec.Devices, func(d v1alpha1.DeviceLedger) bool {
			return len(d.Slices) == 0 && !slices.ContainsFunc(ledger.Status.Devices, func(s v1alpha1.DeviceStatus) bool { return s.UUID == d.UUID })
		})
	}
	return changed
}

// Leave marks the idle slices of these pods as leaving. It reports whether anything changed.
func Leave(ledger *v1alpha1.SliceLedger, pods map[types.UID]bool) (changed bool) {
	for i := range ledger.Spec.Devices {
		for j := range ledger.Spec.Devices[i].Slices {
			if s := &ledger.Spec.Devices[i].Slices[j]; s.Idle > 0 && !s.Leaving && pods[s.Pod] {
				s.Leaving, changed = true, true
			}
		}
	}
	return changed
}

// Lend writes how much memory the slices of each device have beyond what it has. Placement grants such
// to idle slices alone, and the API server's rules hold others to the device.
func Lend(ledger *v1alpha1.SliceLedger) {
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		sum := v1alpha1.MiB(0)
		for j := range d.Slices {
			sum += placement.AmountOf(&d.Slices[j]).Mem
		}
		d.Lent = max(0, sum-d.Mem)
	}
}

// Pods are the pods that hold slices, each with its owner (namespace/name).
func Pods(ledger *v1alpha1.SliceLedger) map[types.UID]string {
	pods := map[types.UID]string{}
	for _, d := range ledger.Spec.Devices {
		for _, s := range d.Slices {
			pods[s.Pod] = s.Owner
		}
	}
	return pods
}

// Gone yields the pods that hold slices before and none after, some perhaps more than
// once. Either ledger may be nil, which holds nothing. Versions that follow each
// other are alike but for a few slices: that takes no time and no memory.
func Gone(before, after *v1alpha1.SliceLedger) iter.Seq2[types.UID, string] {
	return func(yield func(types.UID, string) bool) {
		if before == nil {
			return
		}
		for i := range before.Spec.Devices {
			was := before.Spec.Devices[i].Slices
			var is []v1alpha1.Slice
			if after != nil && i < len(after.Spec.Devices) {
				is = after.Spec.Devices[i].Slices
			}
			for j := range was {
				// Slices mostly stay where they are.
				pod := was[j].Pod
				if j < len(is) && is[j].Pod == pod || hasPod(is, pod) || holds(after, pod) {
					continue
				}
				if !yield(pod, was[j].Owner) {
					return
				}
			}
		}
	}
}

func hasPod(slices []v1alpha1.Slice, pod types.UID) bool {
	for i := range slices {
		if slices[i].Pod == pod {
			return true
		}
	}
	return false
}

func holds(ledger *v1alpha1.SliceLedger, pod types.UID) bool {
	if ledger == nil {
		return false
	}
	for i := range ledger.Spec.Devices {
		if hasPod(ledger.Spec.Devices[i].Slices, pod) {
			return true
		}
	}
	return false
}

// PlacementOf is Placement, with how near to each other the pod's devices are by the ledger's
// status, where the pod asks for some topology.
func PlacementOf(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) *v1alpha1.Placement {
	p := Placement(ledger, pod.UID)
	wish := podrequest.TopologyOf(pod)
	if p == nil || wish.Level == "" {
		return p
	}
	all, used := ledger.Status.Near(), []v1alpha1.Near{}
	for i := range ledger.Status.Devices {
		if uuid := ledger.Status.Devices[i].UUID; i < len(all) && p.Uses(uuid) {
			used = append(used, all[i])
		}
	}
	// What was required holds as far as the driver says so now.
	p.Topology = v1alpha1.TopologyNode
	for _, level := range wish.Levels() {
		if level.Within(used...) {
			p.Topology = level
			break
		}
	}
	return p
}

// Placement is what the ledger grants to the pod, as the document for people;
// nil when that is nothing.
func Placement(ledger *v1alpha1.SliceLedger, pod types.UID) *v1alpha1.Placement {
	p := &v1alpha1.Placement{Version: v1alpha1.Version, Node: ledger.Name, Containers: map[string]v1alpha1.PlacedShare{}}
	for _, d := range ledger.Spec.Devices {
		for i := range d.Slices {
			s := &d.Slices[i]
			if s.Pod != pod {
				continue
			}
			placed := p.Containers[s.Ctr]
			placed.Mode, placed.Resized = s.EffectiveMode(), placed.Resized || s.Asked != nil
			placed.Devices = append(placed.Devices, v1alpha1.PlacedDevice{UUID: d.UUID, Core: s.Core, MemMiB: s.Mem})
			p.Containers[s.Ctr] = placed
		}
	}
	if len(p.Containers) == 0 {
		return nil
	}
	return p
}

// Serves reports whether the ledger grants the pod exactly what the shares ask for, but for
// slices that were resized or began with less. Every container has its number of devices with
// its core and memory of each, and no other container has any. The node compares the same before it starts a
// container.
func Serves(ledger *v1alpha1.SliceLedger, pod types.UID, shares map[string]v1alpha1.Share) bool {
	granted := map[string]v1alpha1.DeviceCount{}
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		once := map[string]bool{}
		for j := range d.Slices {
			s := &d.Slices[j]
			if s.Pod != pod {
				continue
			}
			share, asks := shares[s.Ctr]
			mem, err := share.Memory(d.Mem)
			if !asks || err != nil || once[s.Ctr] || s.Of() != (v1alpha1.Amounts{Core: share.Core, Mem: mem}) {
				return false
			}
			once[s.Ctr] = true
			granted[s.Ctr]++
		}
	}
	for name, share := range shares {
		if granted[name] != share.GPUs {
			return false
		}
	}
	return len(shares) > 0
}

// Left is the ledger before with the slices alone that after does not have.
func Left(before, after *v1alpha1.SliceLedger) *v1alpha1.SliceLedger {
	left := *before
	left.Spec.Devices = slices.Clone(before.Spec.Devices)
	for i := range left.Spec.Devices {
		d := &left.Spec.Devices[i]
		d.Slices = slices.DeleteFunc(slices.Clone(d.Slices), func(s v1alpha1.Slice) bool { return sliceOn(after, d.UUID, s.Pod, s.Ctr) != nil })
	}
	return &left
}

// Without is the ledger when the pods have gone: without their slices, granted and used. It shares
// the rest with the ledger.
func Without(ledger *v1alpha1.SliceLedger, gone func(types.UID) bool) *v1alpha1.SliceLedger {
	left := *ledger
	left.Spec.Devices = slices.Clone(ledger.Spec.Devices)
	leaves := func(s v1alpha1.Slice) bool { return gone(s.Pod) }
	for i := range left.Spec.Devices {
		if d := &left.Spec.Devices[i]; slices.ContainsFunc(d.Slices, leaves) {
			d.Slices = slices.DeleteFunc(slices.Clone(d.Slices), leaves)
		}
	}
	// What a pod uses without a grant keeps a device closed.
	left.Status.Slices = slices.DeleteFunc(slices.Clone(ledger.Status.Slices), func(s v1alpha1.SliceStatus) bool { return gone(s.Pod) })
	return &left
}
