// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// rehome moves slices off devices that failed or went away to other devices of
// the node, for pods that are bound and cannot start because of it: the kubelet's
// next attempt then succeeds. A pod of which anything ever ran keeps its devices.
// All moves are one write. The placement annotation stays as it was; the ledger
// decides.
func (a *Allocator) rehome(ctx context.Context, node string) error {
	known := a.index.Ledger(node)
	if known == nil {
		return nil
	}
	ledger := known.DeepCopy()
	notes := map[*corev1.Pod]string{}
	for uid, pod := range a.granted(ledger) {
		if pod.Spec.NodeName != node || !stuck(pod) || attached(ledger, pod) {
			continue
		}
		for _, from := range failed(ledger, pod) {
			to := a.refuge(ledger, pod, from)
			if to == nil {
				continue
			}
			if err := book.Move(ledger, uid, from, to.UUID); err != nil {
				return err
			}
			notes[pod] = fmt.Sprintf("device %s of node %s failed before a container used it: moved to GPU %d (%s)", from, node, to.Index, to.UUID)
		}
	}
	if len(notes) == 0 {
		return nil
	}
	if err := a.write(ctx, ledger); err != nil {
		return err
	}
	for pod, note := range notes {
		a.tell(pod, corev1.EventTypeNormal, reasonMoved, note)
	}
	return nil
}

// attached tells whether the node has any of the pod's slices in use.
func attached(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) bool {
	return slices.ContainsFunc(ledger.Status.Slices, func(s v1alpha1.SliceStatus) bool { return s.Pod == pod.UID })
}

// failed are the devices with slices of the pod that are ill or gone.
func failed(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) []string {
	var uuids []string
	for _, d := range ledger.Spec.Devices {
		well := slices.ContainsFunc(ledger.Status.Devices, func(s v1alpha1.DeviceStatus) bool { return s.UUID == d.UUID && s.Healthy })
		if !well && slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod.UID }) {
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}

// refuge is the device with the least room that can take all of the pod's slices
// of a failed one; nil when there is none.
func (a *Allocator) refuge(ledger *v1alpha1.SliceLedger, pod *corev1.Pod, from string) *placement.Device {
	demand, _, err := demandOf(pod)
	room := index.Room(ledger)
	if err != nil || room == nil {
		return nil
	}
	var moving []v1alpha1.Slice
	own := map[string]bool{}
	for _, d := range ledger.Spec.Devices {
		for _, s := range d.Slices {
			switch {
			case s.Pod != pod.UID:
			case d.UUID == from:
				moving = append(moving, s)
			default:
				// A container's devices must stay distinct; simplest is a device
				// that the pod does not use at all.
				own[d.UUID] = true
			}
		}
	}
	var core v1alpha1.Percent
	var mem v1alpha1.MiB
	exclusive := false
	for _, s := range moving {
		core, mem = core+s.Core-s.ReuseCore, mem+s.Mem-s.ReuseMem
		exclusive = exclusive || s.EffectiveMode() == v1alpha1.ModeExclusive
	}
	var best *placement.Device
	for i := range room.Devices {
		d := &room.Devices[i]
		switch {
		case own[d.UUID] || !demand.Models.Allows(d.Model) || !demand.UUIDs.Allows(d.UUID):
		case core > d.FreeCore || mem > d.FreeMem || len(moving) > d.Slots:
		case exclusive && mem != d.Mem:
		case best == nil || d.FreeCore < best.FreeCore || d.FreeCore == best.FreeCore && d.FreeMem < best.FreeMem:
			best = d
		}
	}
	return best
}
