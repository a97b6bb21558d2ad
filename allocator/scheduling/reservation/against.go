// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Against are the reservations that hide room from the asker, the oldest first. It sees through
// its own and those of a lower priority. It sees through that of the first that waits where it
// goes before that one in all namespaces (queue.Precedence). It sees through those of room that
// it would have left before any other could have it; these are the filled.
func (rs *Reservations) Against(a Asker) (against, filled []*Reservation) {
	all := rs.All()
	if len(all) == 0 {
		return nil, nil
	}
	end, known := rs.endOf(a.Pods)
	for _, r := range all {
		switch {
		case r.Owner == a.Item || r.Kind != Head && a.Priority.Above(r.Priority) || r.Kind == Move && r.isFor(a.Pods) || r.Kind == Workload && r.isOf(a.Pods) || r.Kind == Head && rs.before(a, r):
		case backfill.MayFill(end, known, r.End):
			filled = append(filled, r)
		default:
			against = append(against, r)
		}
	}
	return against, filled
}

// isOf reports whether the pods are the Workload's.
func (r *Reservation) isOf(pods []*corev1.Pod) bool {
	return len(pods) > 0 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		return p.Namespace != r.Owner.Namespace() || podrequest.ReservedFor(p) != r.UID
	})
}

// isFor reports whether the pods are what the controller of the moved pod makes.
func (r *Reservation) isFor(pods []*corev1.Pod) bool {
	return len(pods) > 0 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		of := metav1.GetControllerOfNoCopy(p)
		return p.Namespace != r.Owner.Namespace() || of == nil || of.UID != r.Controller
	})
}

func (rs *Reservations) before(a Asker, r *Reservation) bool {
	return len(a.Pods) > 0 && rs.queue.Precedence(a.Priority, a.Pods[0]) > rs.queue.Precedence(r.Priority, r.Pods[0])
}

// endOf is when all of the pods have ended, if they start now; false where nobody knows.
func (rs *Reservations) endOf(pods []*corev1.Pod) (end time.Time, known bool) {
	now := rs.clock.Now()
	for _, pod := range pods {
		e, ok := backfill.EndOf(pod, now, rs.lookahead)
		if !ok {
			return end, false
		}
		if e.After(end) {
			end = e
		}
	}
	return end, len(pods) > 0
}

// Hide is the room of a node as it is seen under the reservations. ledger is the one behind it.
func Hide(against []*Reservation, room *placement.Node, ledger *v1alpha1.SliceLedger) *placement.Node {
	var reserved []placement.Reserved
	leaving := map[types.UID]bool{}
	for _, r := range against {
		for i := range r.Plans {
			if r.Plans[i].Node != ledger.Name {
				continue
			}
			for _, g := range r.Plans[i].Grants {
				reserved = promise(reserved, g)
			}
			for uid := range r.Leaving {
				leaving[uid] = true
			}
		}
	}
	if len(reserved) == 0 || room == nil {
		return room
	}
	for i := range reserved {
		r := &reserved[i]
		at := slices.IndexFunc(ledger.Spec.Devices, func(d v1alpha1.DeviceLedger) bool { return d.UUID == r.UUID })
		if at < 0 {
			continue
		}
		slices := ledger.Spec.Devices[at].Slices
		for j := range slices {
			if leaving[slices[j].Pod] {
				r.Leaving = r.Leaving.Plus(placement.AmountOf(&slices[j]))
			}
		}
	}
	return room.Hide(reserved)
}

func promise(reserved []placement.Reserved, g placement.Grant) []placement.Reserved {
	at := slices.IndexFunc(reserved, func(r placement.Reserved) bool { return r.UUID == g.UUID })
	if at < 0 {
		at = len(reserved)
		reserved = append(reserved, placement.Reserved{UUID: g.UUID})
	}
	reserved[at].Grants = append(reserved[at].Grants, g)
	return reserved
}

// Fills reports whether a plan is on a device that one of the reservations promises.
func Fills(filled []*Reservation, plan *placement.Plan) bool {
	return slices.ContainsFunc(filled, func(r *Reservation) bool {
		return slices.ContainsFunc(r.Plans, func(p placement.Plan) bool {
			return p.Node == plan.Node && slices.ContainsFunc(p.Grants, func(g placement.Grant) bool {
				return slices.ContainsFunc(plan.Grants, func(o placement.Grant) bool { return o.UUID == g.UUID })
			})
		})
	})
}
