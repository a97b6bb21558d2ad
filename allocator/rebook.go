// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/asked"
	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// rebook brings a node's ledger in line with its pods: the slices of unbooked pods
// are written back, and those of a pod that runs elsewhere than it is booked go
// where it runs. The latter is a device that recovered at the moment when the pod
// was moved off it.
func (a *Allocator) rebook(ctx context.Context, node string) error {
	known := a.index.Ledger(node)
	if known == nil {
		return nil
	}
	ledger := known
	for _, pod := range a.amiss(known) {
		now, fits := rebooked(pod, ledger)
		if !fits {
			a.Log.Info("the ledger of a pod's node does not have its slices and has no room for them; what of it does not run cannot start until others are gone",
				"pod", keyOf(pod), "node", node)
			continue
		}
		if !equality.Semantic.DeepEqual(book.Placement(ledger, pod.UID), book.Placement(now, pod.UID)) {
			ledger = now
		}
	}
	if ledger == known {
		return nil
	}
	return a.write(ctx, ledger)
}

// amiss are the pods that are not in the ledger as they should be, oldest first.
// Those that run come before the others: nobody else can have their devices.
func (a *Allocator) amiss(ledger *v1alpha1.SliceLedger) []*corev1.Pod {
	a.mu.Lock()
	pods := a.unbookedOn(ledger.Name)
	a.mu.Unlock()
	known := a.granted(ledger)
	for uid, uuid := range index.Adrift(ledger) {
		switch {
		case pods[uid] != nil:
		case known[uid] != nil:
			pods[uid] = known[uid]
		default:
			a.Log.Info("containers of a pod that is not known use a device that the ledger does not give them; nothing is granted there until the node says that they are gone",
				"uid", uid, "device", uuid, "node", ledger.Name)
		}
	}
	var running, others []*corev1.Pod
	for _, pod := range oldestFirst(pods) {
		if attached(ledger, pod) {
			running = append(running, pod)
		} else {
			others = append(others, pod)
		}
	}
	return append(running, others...)
}

// rebooked is the ledger with the pod's slices where they belong; false when it
// does not have the room.
func rebooked(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
	demand, _, err := asked.Of(pod)
	devices := devicesOf(pod, ledger)
	if err != nil || devices == nil {
		return nil, false
	}
	now := ledger.DeepCopy()
	book.Release(now, func(uid types.UID) bool { return uid == pod.UID })
	plan, fits := placement.Rebook(demand, index.Unfiltered(now), devices)
	if !fits || book.Grant(now, pod.UID, keyOf(pod).String(), plan) != nil {
		return nil, false
	}
	return now, true
}

// devicesOf are the devices of the pod's containers, by name: those that they run
// on, as slices can have been moved; else those that the ledger says, else the
// placement. Nil when nothing of this can be read.
func devicesOf(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) map[string][]placement.Has {
	placed := book.Placement(ledger, pod.UID)
	if placed == nil {
		var err error
		placed, err = v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement])
		if err != nil || placed.Node != ledger.Name {
			return nil
		}
	}
	devices := map[string][]placement.Has{}
	for name, c := range placed.Containers {
		for _, d := range c.Devices {
			devices[name] = append(devices[name], placement.Has{UUID: d.UUID})
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
