// SPDX-License-Identifier: Apache-2.0

// Package missing owns how slices that a ledger has lost are written back. They go where their
// containers run or ran, or on other devices of the node if theirs are gone. Every function
// is pure: a pod and a ledger in, a new ledger out.
package missing

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Possible reports whether the ledger has room for the pod's slices, at once or on another
// device than before.
func Possible(pod *corev1.Pod, ledger *v1alpha1.SliceLedger, known *classes.Set) bool {
	if _, fits := InPlace(pod, ledger); fits {
		return true
	}
	_, fits := Moved(pod, ledger, known, time.Time{})
	return fits
}

// InPlace is the ledger with the pod's slices where they belong; false when it
// does not have the room.
func InPlace(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
	demand, err := placement.GrantedDemand(podrequest.Of(pod))
	devices := devicesOf(pod, ledger)
	if err != nil || devices == nil {
		return nil, false
	}
	inForce(demand, pod, ledger)
	now := ledger.DeepCopy()
	grants.Release(now, func(uid types.UID) bool { return uid == pod.UID })
	plan, fits := placement.Rebook(demand, index.Unfiltered(now), devices)
	if !fits || grants.Regrant(now, ledger, pod.UID, podstate.KeyOf(pod).String(), plan, devices, time.Time{}) != nil {
		return nil, false
	}
	grants.Recount(now, pod)
	return now, true
}

// inForce makes the shares of containers that were resized no less than what the node agent
// reports: the placement is written after that.
func inForce(demand *placement.Demand, pod *corev1.Pod, ledger *v1alpha1.SliceLedger) {
	for i := range ledger.Status.Slices {
		s := &ledger.Status.Slices[i]
		if s.Pod != pod.UID || s.InForce == nil {
			continue
		}
		for j := range demand.Containers {
			if c := &demand.Containers[j]; c.Name == s.Ctr && c.Asked.GPUs > 0 {
				c.AtLeast(c.Asked, s.InForce.Core, s.InForce.Mem)
			}
		}
	}
}

// Moved is the ledger with the pod's slices where they belong but for those on a
// device that the node has no more. Their containers get others, if none of them runs, as
// granted at that time. It is false when there are none for them, or there is no need, or a class of theirs is not known.
// Nothing of the kind is started before the ledger says that the device is back, as when slices
// are reassigned.
func Moved(pod *corev1.Pod, ledger *v1alpha1.SliceLedger, known *classes.Set, at time.Time) (*v1alpha1.SliceLedger, bool) {
	demand, err := placement.GrantedDemand(podrequest.Of(pod))
	keep := devicesOf(pod, ledger)
	if err != nil || keep == nil {
		return nil, false
	}
	gone := func(h placement.Has) bool {
		return !slices.ContainsFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == h.UUID })
	}
	inForce(demand, pod, ledger)
	moves := 0
	for ctr, devices := range keep {
		if slices.ContainsFunc(devices, gone) {
			if runs(ctr, pod, ledger) {
				return nil, false
			}
			if !narrow(demand, ctr, known) {
				return nil, false
			}
			delete(keep, ctr)
			moves++
		}
	}
	if moves == 0 {
		return nil, false
	}
	now := ledger.DeepCopy()
	grants.Release(now, func(uid types.UID) bool { return uid == pod.UID })
	plan, fits := placement.Refit(demand, besides(keep, pod, now), keep)
	if !fits || grants.Regrant(now, ledger, pod.UID, podstate.KeyOf(pod).String(), plan, keep, at) != nil {
		return nil, false
	}
	return now, true
}

// narrow restricts a container to the devices of its class, if it has one; false when that is
// not known.
func narrow(demand *placement.Demand, ctr string, known *classes.Set) bool {
	for i := range demand.Containers {
		if c := &demand.Containers[i]; c.Name == ctr && c.Class != "" {
			class := known.Get(c.Class)
			if class == nil {
				return false
			}
			c.Models = class.Models
		}
	}
	return true
}

// runs reports whether the container runs, by the ledger's status or by the pod's own, which
// may be the first to say so. Where it runs then nobody knows yet.
func runs(ctr string, pod *corev1.Pod, ledger *v1alpha1.SliceLedger) bool {
	return slices.ContainsFunc(ledger.Status.Slices, func(s v1alpha1.SliceStatus) bool { return s.Pod == pod.UID && s.Ctr == ctr }) ||
		slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
			return s.Name == ctr && s.State.Running != nil
		})
}

// besides is the node with what may be granted on it, and with the devices that the pod
// keeps, whatever their state. A device that takes no other slices has room for these alone.
func besides(keep map[string][]placement.Has, pod *corev1.Pod, ledger *v1alpha1.SliceLedger) *placement.Node {
	// What the pod itself has in use is in nobody's way.
	others := *ledger
	others.Status.Slices = slices.DeleteFunc(slices.Clone(ledger.Status.Slices), func(s v1alpha1.SliceStatus) bool { return s.Pod == pod.UID })
	node, open := index.Unfiltered(ledger), index.Room(&others)
	for i := range node.Devices {
		d := &node.Devices[i]
		if open.Device(d.UUID) != nil {
			continue
		}
		kept := 0
		for _, devices := range keep {
			if slices.ContainsFunc(devices, func(h placement.Has) bool { return h.UUID == d.UUID }) {
				kept++
			}
		}
		d.Slots = min(d.Slots, kept)
	}
	return node
}

// devicesOf are the devices of the pod's containers, by name: where a container runs, the
// devices that the status shows, as slices can have been moved; else the ledger's grants;
// else, or where the ledger has fewer, the placement's. Nil when none of these can be read.
func devicesOf(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) map[string][]placement.Has {
	placed, err := podrequest.PlacementOf(pod)
	booked := grants.Placement(ledger, pod.UID)
	if booked == nil && (err != nil || placed.Node != ledger.Name) {
		return nil
	}
	devices := map[string][]placement.Has{}
	for _, p := range []*v1alpha1.Placement{booked, placed} {
		if p == nil || p.Node != ledger.Name {
			continue
		}
		for name, c := range p.Containers {
			var on []placement.Has
			for _, d := range c.Devices {
				if has := (placement.Has{UUID: d.UUID}); !slices.Contains(on, has) {
					on = append(on, has)
				}
			}
			if len(on) != len(devices[name]) {
				devices[name] = on
			}
		}
	}
	running := map[string][]placement.Has{}
	for _, s := range ledger.Status.Slices {
		has := placement.Has{UUID: s.UUID}
		if s.MIG != nil {
			has.MIG = *s.MIG
		}
		// A container that is started again can be listed twice for a moment.
		if s.Pod == pod.UID && !slices.ContainsFunc(running[s.Ctr], func(h placement.Has) bool { return h.UUID == has.UUID }) {
			running[s.Ctr] = append(running[s.Ctr], has)
		}
	}
	maps.Copy(devices, running)
	return devices
}

// Attached reports whether the node has any of the pod's slices in use.
func Attached(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) bool {
	return slices.ContainsFunc(ledger.Status.Slices, func(s v1alpha1.SliceStatus) bool { return s.Pod == pod.UID })
}
