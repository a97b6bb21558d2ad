// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/podstate"
)

// The scheduler binds pods in an order of its own. To most pods that makes no
// difference: whatever is bound first, what was decided fits beside it. To a pod with
// wishes of other pods (feasible.Company) it does: it was judged beside those that were
// decided before it, and without those after it. Such a pod is therefore not decided on
// while a pod that it selects, or that selects it, is on its way to its node; it comes
// when that one is bound. Pods that nobody selects never wait, and neither do the pods
// of one gang for each other: they go together or not at all. The same goes for pods that
// may take each other's volumes or devices of other drivers (Filters.Undecided), of which
// the filters know only what bound pods took.

// order is which pods are on their way, and who waits for which of them.
type order struct {
	// unbound are the pods that have their node and are not bound to it.
	unbound map[types.UID]*corev1.Pod
	// choosy are those of them with wishes of other pods.
	choosy map[types.UID]feasible.Company
	// taking are those of which the filters do not know what they take. One that is bound
	// is on its way until they do.
	taking map[types.UID][]string
	// behind are the pods that wait until one is bound, by that one.
	behind map[types.UID]map[types.NamespacedName]bool
	// waits are the gated pods that wait for one to be bound, or did.
	waits map[types.UID]*bindWait
}

func newOrder() order {
	return order{
		unbound: map[types.UID]*corev1.Pod{}, choosy: map[types.UID]feasible.Company{}, taking: map[types.UID][]string{},
		behind: map[types.UID]map[types.NamespacedName]bool{}, waits: map[types.UID]*bindWait{},
	}
}

// onTheWay notes whether the pod has its node and is not bound to it. One that the
// scheduler refuses is not waited for: it may never be. The caller holds mu.
func (a *Allocator) onTheWay(pod *corev1.Pod, node string) {
	var takes []string
	bound := pod.Spec.NodeName != ""
	if node != "" && !podstate.Unschedulable(pod) && (!bound || a.order.taking[pod.UID] != nil) {
		takes = a.Filters.Undecided(pod)
	}
	if node == "" || podstate.Unschedulable(pod) || bound && takes == nil {
		a.arrivedOrGone(pod.UID)
		return
	}
	a.order.unbound[pod.UID] = pod
	if delete(a.order.taking, pod.UID); takes != nil {
		a.order.taking[pod.UID] = takes
	}
	if company := feasible.CompanyOf(pod); company != nil {
		a.order.choosy[pod.UID] = company
	}
}

// arrivedOrGone has those looked at that waited for the pod, oldest first. The caller
// holds mu.
func (a *Allocator) arrivedOrGone(pod types.UID) {
	delete(a.order.unbound, pod)
	delete(a.order.choosy, pod)
	delete(a.order.taking, pod)
	due := map[types.NamespacedName]*corev1.Pod{}
	for key := range a.order.behind[pod] {
		if known := a.pods[key]; known != nil {
			a.endWait(known) // and not when it is looked at, which may be much later
			due[key] = known
		}
	}
	delete(a.order.behind, pod)
	for _, next := range podstate.OldestFirst(due) {
		a.enqueue(a.itemOf(next))
	}
}

// claimsChanged looks again at the bound pods of which the filters did not know what they
// take. The caller holds mu.
func (a *Allocator) claimsChanged() {
	for uid := range a.order.taking {
		if pod := a.order.unbound[uid]; pod.Spec.NodeName != "" {
			a.onTheWay(pod, pod.Spec.NodeName)
		}
	}
}

// queues reports whether one of the pods, of one gang or alone, has to wait for a pod that
// is on its way. They are looked at again when that one is bound, or gone, or when they have
// waited for as long as they may.
func (a *Allocator) queues(pods ...*corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range pods {
		a.endWait(pod)
	}
	until := a.Clock.Now().Add(roundTime)
	for i, pod := range pods {
		// Each member is compared with each pod on its way, by selectors that any tenant wrote.
		// Who is not asked about in time is decided on as if it had waited.
		if i%maxRound == maxRound-1 && !a.Clock.Now().Before(until) {
			return false
		}
		first := a.ahead(pod)
		if first == nil {
			continue
		}
		foreign := first.Namespace != pod.Namespace
		name := "pod " + podstate.KeyOf(first).String()
		if foreign {
			name = "a pod of another namespace" // its name is that tenant's own affair
		}
		for _, p := range pods {
			a.startWait(p, first)
			a.waitElsewhere(p, reasonWaiting, "order", fmt.Sprintf(
				"%s is placed and not bound yet, and by the affinity, the spread, the volumes or the resource claims of one of them it matters which comes first", name))
		}
		a.enqueueAfter(a.itemOf(pod), a.order.waits[pod.UID].left(foreign))
		return true
	}
	return false
}

// inTurn has each pod of a gang behind those that it selects and that do not select it in
// return. The scheduler would not take it before them; or where it might as the first of
// its kind, anywhere, it would not after one of them that is elsewhere. Beside all of them
// it is taken in the end, in whatever order the scheduler comes to them. Of two that
// select each other the one that has to be nearer goes behind: beside the other it is near
// enough for both.
func (a *Allocator) inTurn(order []ask) []ask {
	if !slices.ContainsFunc(order, func(p ask) bool { return p.pod.Spec.Affinity != nil || len(p.pod.Spec.TopologySpreadConstraints) > 0 }) {
		return order
	}
	k := kindsOf(order)
	domains := map[string]int{}
	nearest := func(keys []string) (most int) {
		for _, key := range keys {
			if _, known := domains[key]; !known {
				domains[key] = len(a.Filters.Domains(key))
			}
			most = max(most, domains[key])
		}
		return most
	}
	// after are the kinds behind which those of a kind go.
	after, any := make([][]bool, len(k.example)), false
	for p, there := range k.wishes {
		after[p] = make([]bool, len(k.example))
		for q, back := range k.wishes {
			after[p][q] = there.Selects(k.example[q]) &&
				(!back.Selects(k.example[p]) || nearest(there.Near(k.example[q])) > nearest(back.Near(k.example[p])))
			any = any || after[p][q]
		}
	}
	if !any {
		return order
	}
	turn, begun, entered := make([]ask, 0, len(order)), make([]bool, len(order)), make([]bool, len(k.example))
	var enter func(i int)
	enter = func(i int) {
		if begun[i] {
			return
		}
		begun[i] = true
		// Those that go before one of a kind go before all of it.
		if kind := k.of[i]; !entered[kind] {
			entered[kind] = true
			for j := range order {
				if after[kind][k.of[j]] {
					enter(j)
				}
			}
		}
		turn = append(turn, order[i])
	}
	for i := range order {
		enter(i)
	}
	return turn
}

// ahead is the oldest pod on its way that the pod has to wait for, nil when there is
// none. The caller holds mu.
func (a *Allocator) ahead(pod *corev1.Pod) (first *corev1.Pod) {
	waited := a.order.waits[pod.UID]
	if waited.left(false) <= 0 && waited.left(true) <= 0 {
		return nil
	}
	gang, inGang := group.Of(pod)
	// consider asks what costs least first: the selectors of other tenants' pods may be
	// long.
	consider := func(uid types.UID, matters func() bool) {
		other := a.order.unbound[uid]
		if uid == pod.UID || waited.left(other.Namespace != pod.Namespace) <= 0 || first != nil && podstate.ByAge(other, first) >= 0 {
			return
		}
		if its, is := group.Of(other); (!inGang || !is || its != gang) && matters() {
			first = other
		}
	}
	for uid, company := range a.order.choosy {
		consider(uid, func() bool { return company.Selects(pod) })
	}
	if company := feasible.CompanyOf(pod); company != nil {
		for uid, other := range a.order.unbound {
			consider(uid, func() bool { return company.Selects(other) })
		}
	}
	if takes := a.Filters.Undecided(pod); takes != nil {
		for uid, theirs := range a.order.taking {
			consider(uid, func() bool {
				return slices.ContainsFunc(takes, func(what string) bool { return slices.Contains(theirs, what) })
			})
		}
	}
	return first
}
