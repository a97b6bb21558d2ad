// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// take has the reservations of Workloads promise no more what their pods have got. A pod takes one
// plan, of those for pods like it the one for its place if there is one.
func (rs *Reservations) take() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	all, version, moved := rs.all, rs.cache.ReservedForVersion(), false
	for i, r := range rs.all {
		if r.Kind != Workload || rs.noteOf(r).pods == version {
			continue
		}
		rs.noteOf(r).pods = version
		less := *r
		for _, pod := range rs.placed(r) {
			if !less.taken[pod.UID] {
				moved = !less.take(pod, rs.cache.Index.Ledger(podstate.TargetNode(pod))) || moved
			}
		}
		if len(less.taken) > len(r.taken) {
			all = slices.Clone(all)
			all[i] = &less
			rs.notes[&less] = rs.notes[r]
			delete(rs.notes, r)
		}
	}
	if rs.all = all; moved {
		rs.queue.MoveToActive(cache.OnAll)
	}
}

// placed are the pods of the Workload that have their slices.
func (rs *Reservations) placed(r *Reservation) []*corev1.Pod {
	return slices.DeleteFunc(rs.cache.ReservedFor(r.Owner.Namespace(), r.UID), func(p *corev1.Pod) bool {
		return podstate.Gated(p) && len(rs.cache.Index.Holders(p.UID)) == 0
	})
}

// take leaves out the plan that the pod has taken, on a node with this ledger, nil where it has none. It
// reports whether the pod has the very devices of the plan.
func (r *Reservation) take(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (same bool) {
	best, rank := -1, -1
	for i := range r.Plans {
		of := 0
		if r.Classes[i] == podrequest.EquivalenceClass(pod) {
			of = 1
			if ledger != nil && r.Plans[i].Node == ledger.Name {
				of = 2
				if isOn(ledger, pod.UID, r.Plans[i].Grants) {
					of = 3
				}
			}
		}
		if of > rank {
			best, rank = i, of
		}
	}
	r.taken = maps.Clone(r.taken)
	if r.taken[pod.UID] = true; best >= 0 {
		r.Plans, r.Classes = slices.Delete(slices.Clone(r.Plans), best, best+1), slices.Delete(slices.Clone(r.Classes), best, best+1)
	}
	return rank == 3
}

// isOn reports whether the pod has a slice of each of the devices.
func isOn(ledger *v1alpha1.SliceLedger, pod types.UID, all []placement.Grant) bool {
	return !slices.ContainsFunc(all, func(g placement.Grant) bool {
		return !slices.ContainsFunc(ledger.Spec.Devices, func(d v1alpha1.DeviceLedger) bool {
			return d.UUID == g.UUID && slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod })
		})
	})
}
