// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// rebook brings a node's ledger in line with its pods: the slices of unbooked pods
// are written back, and those of a pod that runs elsewhere than it is booked go
// where it runs. The latter is a device that recovered at the moment when the pod
// was moved off it. Who has to have another device comes last, and takes nobody's place.
func (a *Allocator) rebook(ctx context.Context, node string) error {
	known := a.index.Ledger(node)
	if known == nil {
		return nil
	}
	ledger := known
	news := func(pod *corev1.Pod, now *v1alpha1.SliceLedger) bool {
		return !equality.Semantic.DeepEqual(ledgerspec.Placement(ledger, pod.UID), ledgerspec.Placement(now, pod.UID))
	}
	var homeless, moved []*corev1.Pod
	for _, pod := range a.amiss(known) {
		if now, fits := rebooked(pod, ledger); !fits {
			homeless = append(homeless, pod)
		} else if news(pod, now) {
			ledger = now
		}
	}
	for _, pod := range homeless {
		if now, fits := refitted(pod, ledger); fits && news(pod, now) {
			ledger, moved = now, append(moved, pod)
			continue
		}
		a.Log.Info("the ledger of a pod's node does not have its slices and has no room for them; what of it does not run cannot start until others are gone",
			"pod", podstate.KeyOf(pod), "node", node)
	}
	if ledger == known {
		return nil
	}
	if err := a.write(ctx, ledger); err != nil {
		return err
	}
	for _, pod := range moved {
		a.tell(pod, corev1.EventTypeNormal, reasonMoved, fmt.Sprintf("its slices were lost from the ledger of node %s, and a device that they were on is gone: moved; now %s",
			node, describe(ledgerspec.Placement(ledger, pod.UID), deviceNumbers(ledger))))
	}
	return nil
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
	for uid, pod := range known {
		if pods[uid] == nil && podstate.CreateFailed(pod) && short(pod, ledger) {
			pods[uid] = pod
		}
	}
	var running, others []*corev1.Pod
	for _, pod := range podstate.OldestFirst(pods) {
		if attached(ledger, pod) {
			running = append(running, pod)
		} else {
			others = append(others, pod)
		}
	}
	return append(running, others...)
}

// short tells whether the ledger of the pod's node has other slices for it than it asks
// for: somebody has edited them by hand, and the node starts nothing with them.
func short(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) bool {
	_, shares, err := podrequest.Of(pod)
	return err == nil && pod.Spec.NodeName == ledger.Name && !ledgerspec.Serves(ledger, pod.UID, shares)
}

// putBack is the ledger with the pod's slices where they can be, at once or on another
// device than before; false when nowhere.
func putBack(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
	if now, fits := rebooked(pod, ledger); fits {
		return now, true
	}
	return refitted(pod, ledger)
}

// rebooked is the ledger with the pod's slices where they belong; false when it
// does not have the room.
func rebooked(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
	demand, _, err := podrequest.Of(pod)
	devices := devicesOf(pod, ledger)
	if err != nil || devices == nil {
		return nil, false
	}
	now := ledger.DeepCopy()
	ledgerspec.Release(now, func(uid types.UID) bool { return uid == pod.UID })
	plan, fits := placement.Rebook(demand, index.Unfiltered(now), devices)
	if !fits || ledgerspec.Grant(now, pod.UID, podstate.KeyOf(pod).String(), plan) != nil {
		return nil, false
	}
	return now, true
}

// refitted is the ledger with the pod's slices where they belong but for those on a
// device that the node has no more: their containers get others, if none of them runs;
// false when there are none for them, or there is no need. Nothing of the kind is started
// before the ledger says that the device is back, as with rehome.
func refitted(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (*v1alpha1.SliceLedger, bool) {
	demand, _, err := podrequest.Of(pod)
	keep := devicesOf(pod, ledger)
	if err != nil || keep == nil {
		return nil, false
	}
	gone := func(h placement.Has) bool {
		return !slices.ContainsFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == h.UUID })
	}
	moves := 0
	for ctr, devices := range keep {
		if slices.ContainsFunc(devices, gone) {
			if runs(ctr, pod, ledger) {
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
	ledgerspec.Release(now, func(uid types.UID) bool { return uid == pod.UID })
	plan, fits := placement.Refit(demand, besides(keep, pod, now), keep)
	if !fits || ledgerspec.Grant(now, pod.UID, podstate.KeyOf(pod).String(), plan) != nil {
		return nil, false
	}
	return now, true
}

// runs tells whether the container runs, by the node's word or by the pod's own, which
// may be the first to say so. Where it runs then nobody knows yet.
func runs(ctr string, pod *corev1.Pod, ledger *v1alpha1.SliceLedger) bool {
	return slices.ContainsFunc(ledger.Status.Slices, func(s v1alpha1.SliceStatus) bool { return s.Pod == pod.UID && s.Ctr == ctr }) ||
		slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
			return s.Name == ctr && s.State.Running != nil
		})
}

// besides is the node with what may be granted on it, and with the devices that the pod
// keeps whatever their state: of those that take no others nothing but that.
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

// devicesOf are the devices of the pod's containers, by name: those that they run
// on, as slices can have been moved; else those that the ledger says, else, or where
// the ledger has not as many, the placement. Nil when nothing of this can be read.
func devicesOf(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) map[string][]placement.Has {
	placed, err := v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement])
	booked := ledgerspec.Placement(ledger, pod.UID)
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
