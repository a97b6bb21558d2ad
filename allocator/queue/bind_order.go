// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/podrequest"
)

// The scheduler binds pods in an order of its own. To most pods that makes no
// difference: whatever is bound first, what was decided fits beside it. To a pod with
// terms on other pods (feasible.PodTerms) it does: it was judged beside the pods that were
// decided before it, and without any after it. Such a pod is therefore not decided on
// while a pod that it selects, or that selects it, is on its way to its node; it comes
// when that one is bound. Pods that no other selects never wait, and neither do the pods
// of one gang for each other: they go together or not at all. The same goes for pods that
// may take each other's volumes or devices of other drivers (Undecided), of which the
// filters know only what bound pods took.

// bindOrder is which pods are on their way, and which wait for which of them.
type bindOrder struct {
	// unbound are the pods that have their node and are not bound to it.
	unbound map[types.UID]*corev1.Pod
	// constrained are those of them with terms on other pods.
	constrained map[types.UID]feasible.PodTerms
	// taking are those of which the filters do not know what they take. One that is bound
	// is on its way until they do.
	taking map[types.UID][]string
	// blockedBy are the pods that wait until one is bound, by that one.
	blockedBy map[types.UID]map[types.NamespacedName]bool
	// waits are the gated pods that wait for one to be bound, or did.
	waits map[types.UID]*bindWait
}

func newBindOrder() bindOrder {
	return bindOrder{
		unbound: map[types.UID]*corev1.Pod{}, constrained: map[types.UID]feasible.PodTerms{}, taking: map[types.UID][]string{},
		blockedBy: map[types.UID]map[types.NamespacedName]bool{}, waits: map[types.UID]*bindWait{},
	}
}

// Counted notes whether the pod has a node and is not bound to it. One that the scheduler
// refuses is not waited for: it may never be.
func (q *Queue) Counted(pod *corev1.Pod, node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.onTheWay(pod, node)
}

func (q *Queue) onTheWay(pod *corev1.Pod, node string) {
	var takes []string
	bound := pod.Spec.NodeName != ""
	refused := podstate.Unschedulable(pod)
	if node != "" && !refused && (!bound || q.order.taking[pod.UID] != nil) {
		takes = q.undecided(pod)
	}
	if node == "" || refused || bound && takes == nil {
		q.settled(pod.UID)
		return
	}
	q.order.unbound[pod.UID] = pod
	if delete(q.order.taking, pod.UID); takes != nil {
		q.order.taking[pod.UID] = takes
	}
	if terms := feasible.PodTermsOf(pod); terms != nil {
		q.order.constrained[pod.UID] = terms
	}
}

// settled has those looked at that waited for the pod, which is bound or gone, oldest first.
func (q *Queue) settled(pod types.UID) {
	delete(q.order.unbound, pod)
	delete(q.order.constrained, pod)
	delete(q.order.taking, pod)
	due := map[types.NamespacedName]*corev1.Pod{}
	for key := range q.order.blockedBy[pod] {
		if known := q.cache.Pod(key); known != nil {
			q.endWait(known) // and not when it is looked at, which may be much later
			due[key] = known
		}
	}
	delete(q.order.blockedBy, pod)
	for _, next := range podstate.OldestFirst(due) {
		q.add(q.itemOf(next))
	}
}

// ClaimsChanged looks again at the bound pods of which the filters did not know what they
// take.
func (q *Queue) ClaimsChanged() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for uid := range q.order.taking {
		if pod := q.order.unbound[uid]; pod.Spec.NodeName != "" {
			q.onTheWay(pod, pod.Spec.NodeName)
		}
	}
}

// blockTime bounds how long Blocked compares the pods of one gang with others.
const blockTime = 100 * time.Millisecond

// Blocked reports whether one of the pods, of one gang or alone, has to wait for a pod that
// is on its way. They are looked at again when that one is bound, or gone, or when they have
// waited for as long as they may.
func (q *Queue) Blocked(pods ...*corev1.Pod) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range pods {
		q.endWait(pod)
	}
	until := q.clock.Now().Add(blockTime)
	for i, pod := range pods {
		// Each member is compared with each pod on its way, by selectors that any tenant wrote.
		// Members that are not reached in time are decided on as if they had waited.
		if i%MaxRound == MaxRound-1 && !q.clock.Now().Before(until) {
			return false
		}
		first := q.mustWait(pod)
		if first == nil {
			continue
		}
		foreign := first.Namespace != pod.Namespace
		name := "pod " + podstate.KeyOf(first).String()
		if foreign {
			name = "a pod of another namespace" // its name is that tenant's own affair
		}
		for _, p := range pods {
			q.startWait(p, first)
		}
		q.markElsewhere(pods, notify.ReasonWaiting, notify.Why{Cause: cause.WaitsForPod, Key: "order", Text: fmt.Sprintf(
			"waits for %s to bind: their affinity, spread, volumes or resource claims depend on the order", name)})
		q.addAfter(q.itemOf(pod), q.order.waits[pod.UID].left(foreign))
		return true
	}
	return false
}

// mustWait is the oldest pod on its way that the pod has to wait for, nil when there is none.
func (q *Queue) mustWait(pod *corev1.Pod) (first *corev1.Pod) {
	waited := q.order.waits[pod.UID]
	if waited.left(false) <= 0 && waited.left(true) <= 0 {
		return nil
	}
	gang, inGang := podrequest.GroupOf(pod)
	// consider asks what costs least first: the selectors of other tenants' pods may be
	// long.
	consider := func(uid types.UID, matters func() bool) {
		other := q.order.unbound[uid]
		if uid == pod.UID || waited.left(other.Namespace != pod.Namespace) <= 0 || first != nil && podstate.ByAge(other, first) >= 0 {
			return
		}
		if its, is := podrequest.GroupOf(other); (!inGang || !is || its != gang) && matters() {
			first = other
		}
	}
	for uid, terms := range q.order.constrained {
		consider(uid, func() bool { return terms.Selects(pod) })
	}
	if terms := feasible.PodTermsOf(pod); terms != nil {
		for uid, other := range q.order.unbound {
			consider(uid, func() bool { return terms.Selects(other) })
		}
	}
	if takes := q.undecided(pod); takes != nil {
		for uid, theirs := range q.order.taking {
			consider(uid, func() bool {
				return slices.ContainsFunc(takes, func(what string) bool { return slices.Contains(theirs, what) })
			})
		}
	}
	return first
}

// maxNotWaitedFor bounds for how many others the filters are told what they take, in each
// decision on a pod that may take the same. It takes about as long as to decide on each.
const maxNotWaitedFor = 32

// NotWaitedFor are the pods on their way that may take what pods of the set may, the oldest of
// them. Those that are to be waited for were waited for.
func (q *Queue) NotWaitedFor(set []*corev1.Pod) []*corev1.Pod {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order.taking) == 0 {
		return nil
	}
	inSet, takes := map[types.UID]bool{}, map[string]bool{}
	for _, pod := range set {
		inSet[pod.UID] = true
		for _, what := range q.undecided(pod) {
			takes[what] = true
		}
	}
	others := map[types.UID]*corev1.Pod{}
	for uid, theirs := range q.order.taking {
		if other := q.order.unbound[uid]; len(other.Spec.ResourceClaims) > 0 && other.Namespace == set[0].Namespace {
			continue // the claim may be the same, and what is being allocated the filters give to no other
		}
		if !inSet[uid] && slices.ContainsFunc(theirs, func(what string) bool { return takes[what] }) {
			others[uid] = q.order.unbound[uid]
		}
	}
	oldest := podstate.OldestFirst(others)
	return oldest[:min(len(oldest), maxNotWaitedFor)]
}
