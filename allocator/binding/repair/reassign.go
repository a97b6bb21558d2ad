// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/missing"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// reassign plans containers on their node again whose devices failed or went away, for pods
// that are bound and cannot start because of it: the kubelet's next attempt then
// succeeds. A pod of which anything ever ran keeps its devices, and so does a container
// whose devices are all healthy: it may be started this moment. One whose devices are not
// is not before the ledger says that they are healthy again, and the node agent reads no
// older one: from then on nothing is moved off them. Planning again makes
// percentages the other device's, which need not be of the same size. All moves are
// one write. The placement annotation stays as it was; the ledger decides.
//
// A pod whose GPUs have to follow its CPUs is planned as a whole. There it is enough that
// none of its slices is in use: the node agent starts none of its containers before the move.
func (r *Reconciler) reassign(ctx context.Context, node string) error {
	known := r.Cache.Index.Ledger(node)
	if known == nil {
		return nil
	}
	ledger := known
	notes := map[*corev1.Pod]string{}
	for _, pod := range podstate.OldestFirst(r.Cache.Granted(ledger)) {
		numa, follows := following(ledger, pod)
		if pod.Spec.NodeName != node || !follows && !podstate.NeverStarted(pod) || missing.Attached(ledger, pod) {
			continue
		}
		uid, from := pod.UID, failed(ledger, pod)
		if len(from) == 0 && !follows {
			continue
		}
		without := ledger.DeepCopy()
		grants.Release(without, func(u types.UID) bool { return u == uid })
		room := index.Room(without)
		demand, err := placement.DemandOf(podrequest.Of(pod), r.Classes)
		if room == nil || err != nil {
			continue
		}
		keep := healthy(ledger, pod)
		if follows {
			room, keep = beside(ledger, room, numa), nil
		}
		plan, fits := placement.Refit(demand, room, keep)
		if !fits {
			continue
		}
		if err := grants.Regrant(without, ledger, uid, podstate.KeyOf(pod).String(), plan, keep, r.Clock.Now()); err != nil {
			return err
		}
		ledger = without
		why := fmt.Sprintf("device %s of node %s failed before a container used it", strings.Join(from, ", "), node)
		if follows {
			why = fmt.Sprintf("the kubelet has given it CPUs of NUMA node %d of node %s, which its GPUs were not of", numa, node)
		}
		notes[pod] = fmt.Sprintf("%s: moved; now %s", why, notify.Describe(grants.PlacementOf(ledger, pod), ledger))
	}
	if len(notes) == 0 {
		return nil
	}
	if err := r.Binder.Replace(ctx, known, ledger); err != nil {
		return err
	}
	for pod, note := range notes {
		r.Notify.Emit(pod, corev1.EventTypeNormal, notify.ReasonMoved, note)
	}
	return nil
}

// following is the NUMA node that the pod's GPUs have to be of, because its CPUs are; false
// where they are already, or may be anywhere. While the node agent says so it starts no
// container of the pod that has slices.
func following(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) (numa int32, follows bool) {
	for _, m := range ledger.Status.Misaligned {
		if m.Pod != pod.UID {
			continue
		}
		for _, d := range ledger.Spec.Devices {
			if !ofNUMA(ledger, d.UUID, m.NUMA) && slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod.UID }) {
				return m.NUMA, true
			}
		}
	}
	return 0, false
}

// beside is the room with no devices but those of the NUMA node.
func beside(ledger *v1alpha1.SliceLedger, room *placement.Node, numa int32) *placement.Node {
	there := *room
	there.Devices = slices.DeleteFunc(slices.Clone(room.Devices), func(d placement.Device) bool { return !ofNUMA(ledger, d.UUID, numa) })
	return &there
}

// ofNUMA reports whether the device is of that NUMA node.
func ofNUMA(ledger *v1alpha1.SliceLedger, uuid string, numa int32) bool {
	return slices.ContainsFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool {
		return d.UUID == uuid && d.NUMA != nil && *d.NUMA == numa
	})
}

// healthy are the devices, by name, of the pod's containers that have none that failed.
func healthy(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) map[string][]placement.Has {
	devices, failed := map[string][]placement.Has{}, map[string]bool{}
	for _, d := range ledger.Spec.Devices {
		for i := range d.Slices {
			s := &d.Slices[i]
			if s.Pod != pod.UID {
				continue
			}
			has := placement.Has{UUID: d.UUID}
			if s.MIG != nil {
				has.MIG = *s.MIG
			}
			_, ill := index.Unhealthy(ledger, d.UUID, s)
			devices[s.Ctr], failed[s.Ctr] = append(devices[s.Ctr], has), failed[s.Ctr] || ill
		}
	}
	maps.DeleteFunc(devices, func(ctr string, _ []placement.Has) bool { return failed[ctr] })
	return devices
}

// failed are the devices with slices of the pod that are ill or gone, or of which the
// slice's instance is ill.
func failed(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) []string {
	var uuids []string
	for _, d := range ledger.Spec.Devices {
		if slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool {
			_, ill := index.Unhealthy(ledger, d.UUID, &s)
			return ill && s.Pod == pod.UID
		}) {
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}
