// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// newPriorities is a world of pods of several priorities, some of which budgets cover, in which
// room is kept for the first that waits.
func newPriorities(t *testing.T, seed int) *world {
	return newWorld(t, int64(seed), 2, 1+seed%3, func(w *world) {
		w.priorities, w.reserveAfter = true, 10*time.Minute
		w.defragment = preemption.Defragment{After: time.Minute, MaxPods: 3, PerHour: 60}
		if seed%2 == 0 {
			w.priorityClasses = []string{"class-3"} // the others count in their namespace only
		}
		for _, label := range []string{"app", "tier"} {
			b := objects.Budget(label, "", int32(w.rand.Intn(4)))
			b.Spec.Selector.MatchLabels = map[string]string{label: "x"}
			budgeted(b)(w)
		}
	})
}

// prioritize makes a new pod more or less important than others.
func (w *world) prioritize(p *corev1.Pod) {
	value := w.rand.Intn(4)
	p.Spec.Priority, p.Spec.PriorityClassName = ptr.To(int32(value)), fmt.Sprint("class-", value)
	if _, is := podrequest.GroupOf(p); !is && w.rand.Intn(3) == 0 {
		p.Namespace = "theirs"
	}
	if w.rand.Intn(3) == 0 {
		p.Spec.ActiveDeadlineSeconds = ptr.To(int64(60 << w.rand.Intn(7)))
	}
	if w.rand.Intn(8) == 0 {
		neverPreempts(p)
	}
	if w.rand.Intn(3) == 0 {
		metav1.SetMetaDataLabel(&p.ObjectMeta, "tier", "x")
	}
	if w.rand.Intn(2) == 0 {
		objects.Controlled(p)
		metav1.SetMetaDataLabel(&p.ObjectMeta, v1alpha1.LabelMovable, v1alpha1.LabelMovableTrue)
	}
}

// pass has time go by, or a budget allow something else.
func (w *world) pass() {
	switch w.rand.Intn(40) {
	case 0:
		w.clock.Step([]time.Duration{30 * time.Second, 5 * time.Minute, 11 * time.Minute}[w.rand.Intn(3)])
	case 1:
		w.budgets[w.rand.Intn(len(w.budgets))].Status.DisruptionsAllowed = int32(w.rand.Intn(4))
	}
}

// unprotect has no budgets from now on. All replicas know it.
func (w *world) unprotect() {
	w.budgets, w.objects = nil, nil
	for _, r := range w.replicas {
		r.restart()
	}
}

// checkEvicts asserts, before a replica evicts a pod, that somebody of a higher priority waits for
// its end, as far as the replica can know. Evictions go beside each other, one after the other only in this
// test: who waited when the first of a step went is who waits for the others too.
func (r *replicaInTest) checkEvicts(e *policyv1.Eviction) {
	uid := *e.DeleteOptions.Preconditions.UID
	victim := r.world.find(uid)
	if victim != nil && podrequest.OnIdle(victim) && (r.world.disturbed[uid] || !slices.Contains(r.allocator.cache.Index.Holders(uid), victim.Spec.NodeName)) {
		return // its slice is gone, or elsewhere than it runs
	}
	if len(e.DeleteOptions.DryRun) > 0 {
		return
	}
	for _, held := range append(r.evictsFor, r.allocator.reservations.All()...) {
		_, leaves := held.Leaving[uid]
		above := victim == nil || held.Priority.Above(r.allocator.cache.Priorities.Of(victim))
		if held.Kind == reservation.Defragment { // whatever its priority, its new place is kept
			above = slices.ContainsFunc(r.allocator.reservations.All(), func(place *reservation.Reservation) bool {
				return place.Kind == reservation.Move && place.Moved == uid
			})
		}
		if leaves && above && held.Kind == reservation.Defragment {
			r.world.moved++
		}
		if leaves && above && (slices.Contains(r.evictsFor, held) || r.wait(held.Pods)) {
			r.evictsFor = append(r.evictsFor, held)
			return
		}
	}
	if victim == nil {
		return // it has gone, and the replica does not know yet
	}
	r.world.fail("%s evicts pod %s, and nobody of a higher priority waits for that", r.name, victim.Name)
}

// wait reports whether all of the pods wait, as the replica knows.
func (r *replicaInTest) wait(pods []*corev1.Pod) bool {
	return !slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		known := r.allocator.cache.Current(p)
		return known == nil || !podstate.Ready(known)
	})
}

// hidden is what a replica has promised to others than the pod on a node.
func (r *replicaInTest) hidden(p *corev1.Pod, room *placement.Node, ledger *v1alpha1.SliceLedger) *placement.Node {
	asker := reservation.Asker{Item: queue.Item{Pod: podstate.KeyOf(p)}, Priority: r.allocator.cache.Priorities.Of(p), Pods: []*corev1.Pod{p}}
	against, _ := r.allocator.reservations.Against(asker)
	against = slices.DeleteFunc(against, func(held *reservation.Reservation) bool {
		return slices.ContainsFunc(held.Pods, func(own *corev1.Pod) bool { return own.UID == p.UID })
	})
	return reservation.Hide(against, room, ledger)
}

// keptFrom reports whether every replica keeps the room of a plan for others than the pod.
func (w *world) keptFrom(p *corev1.Pod, demand *placement.Demand, plan *placement.Plan) bool {
	ledger := w.ledger(plan.Node)
	return !slices.ContainsFunc(w.replicas, func(r *replicaInTest) bool {
		return placement.Fits(demand, r.hidden(p, index.Room(ledger), ledger))
	})
}

// checkReserved asserts that at rest room is promised only to pods that wait.
func (w *world) checkReserved() {
	for _, r := range w.replicas {
		for _, held := range r.allocator.reservations.All() {
			for _, p := range held.Pods {
				if now := w.find(p.UID); now == nil || !podstate.Gated(now) {
					w.fail("%s at rest: room is reserved for pod %s, which does not wait", r.name, p.Name)
				}
			}
		}
	}
}

// checkPreempted asserts of a world at rest without budgets that no pod waits that would fit without
// all pods of lower priority that are of no gang.
func (w *world) checkPreempted() {
	for _, p := range w.live {
		if !podstate.Ready(p) || w.together(p) || p.Spec.PreemptionPolicy != nil {
			continue
		}
		demand, err := placement.DemandOf(podrequest.Of(p), w.classes)
		w.must(err)
		for _, n := range w.nodes {
			ledger, gone := w.ledger(n.name), map[types.UID]bool{}
			for _, other := range w.live {
				_, inGang := podrequest.GroupOf(other)
				gone[other.UID] = w.replicas[0].allocator.cache.Priorities.MayEnd(p)(other) &&
					!podstate.Gated(other) && !inGang && !w.disturbed[other.UID]
			}
			for i := range ledger.Spec.Devices {
				d := &ledger.Spec.Devices[i]
				d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return gone[s.Pod] })
			}
			ledger.Status.Slices = slices.DeleteFunc(ledger.Status.Slices, func(s v1alpha1.SliceStatus) bool { return gone[s.Pod] })
			room := index.Room(ledger)
			seen := func(r *replicaInTest) bool {
				return r.allocator.cache.Settled(n.name) && placement.Fits(demand, r.hidden(p, room, ledger))
			}
			if room != nil && slices.ContainsFunc(w.replicas, seen) && w.acceptsWithout(n.name, p, gone) {
				w.fail("pod %s waits, and would fit on %s without pods of lower priority", p.Name, n.name)
			}
		}
	}
}

// Idle slices under random faults, beside pods of several priorities: they are taken back for all of these,
// and none of them is written back. At rest no pod waits that would fit without them.
func TestIdleSliceSoak(t *testing.T) {
	t.Parallel()
	seeds := seedsOr(24, 12)
	ran, reclaimed, overcommitted := 0, 0, 0
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newPriorities(t, seed)
			w.idle = true
			ran += w.run(soakSteps)
			reclaimed += w.reclaimed
			overcommitted += w.overcommitted
		})
	}
	t.Logf("%d pods ran, %d idle slices were taken back, %d slices have less than was asked for", ran, reclaimed, overcommitted)
	if min(ran, reclaimed, overcommitted) < len(seeds) {
		t.Errorf("that of %d seeds shows nothing any more", len(seeds))
	}
}

// Priorities under random faults: preemption, room that is kept, and budgets. Every other world
// comes to rest without budgets, and with replicas that start then.
func TestPrioritySoak(t *testing.T) {
	t.Parallel()
	seeds := seedsOr(24, 12)
	ran, evicted, reserved, moved := 0, 0, 0, 0
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newPriorities(t, seed)
			ran += w.run(soakSteps)
			evicted += len(w.evicted)
			reserved += len(w.reserved)
			moved += w.moved
		})
	}
	if ran < len(seeds) || evicted < len(seeds) || reserved < len(seeds) || moved == 0 {
		t.Errorf("%d pods ran, %d were evicted, %d moved and %d times room was reserved in %d seeds: the test no longer shows anything", ran, evicted, moved, reserved, len(seeds))
	}
}
