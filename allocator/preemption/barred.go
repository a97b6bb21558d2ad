// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/notify"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/reservation"
)

// A pod for which others could be evicted if they might be waits for what keeps them: a budget, a
// refusal of the API server, their gang. It says so, and is looked at again once that changes.

// bars are the namespaces in which a budget, a refusal or a gang may keep pods of lower priority from
// being evicted. known is true where one of the first two may.
type bars struct {
	in    map[string]bool
	known bool
}

// victimChanges is how often VictimsChanged was called.
func (p *Preemption) victimChanges() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// wait notes that nobody is evicted for the owner: what changes in the namespaces may help it, or has
// changed since there were so many changes.
func (p *Preemption) wait(asker reservation.Asker, in map[string]bool, barred string, changes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.looked[asker.Item]
	l.barred = in
	p.looked[asker.Item] = l
	p.queue.MarkNoVictims(asker.Pods, barred)
	if len(in) > 0 && p.changes != changes {
		p.lookAgain(asker.Item, l)
	}
}

// lookAgain has the owner look again early.
func (p *Preemption) lookAgain(owner queue.Item, l look) {
	if early := l.at.Add(EvictAgain); early.Before(l.until) {
		l.until = early
	}
	l.barred = nil // once is enough
	p.looked[owner] = l
	p.queue.AddAfter(owner, max(queue.RefusedDelay, l.until.Sub(p.clock.Now())))
}

// look is what a look for pods to evict came to. It is not repeated before until, or EvictAgain after
// at once something has changed in a namespace of barred.
type look struct {
	at, until time.Time
	barred    map[string]bool
}

// refusal is of a pod's eviction.
type refusal struct {
	namespace string
	until     time.Time
}

// VictimsChanged says that pods of the namespace may be evicted that might not be before, of any
// where it is empty. Owners for which none might be look again.
func (p *Preemption) VictimsChanged(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	maps.DeleteFunc(p.refused, func(_ types.UID, r refusal) bool { return namespace == "" || r.namespace == namespace })
	for owner, l := range p.looked {
		if l.barred[namespace] || namespace == "" && len(l.barred) > 0 {
			p.lookAgain(owner, l)
		}
	}
}

// barring says what keeps the pods from being evicted together for the owner. Only what is of its
// namespace is named.
func (p *Preemption) barring(pods []*corev1.Pod, owner *corev1.Pod) string {
	needed, seen, told := map[*policyv1.PodDisruptionBudget]int{}, map[string]bool{}, map[string]bool{}
	for _, pod := range pods {
		budgets := p.filters.Budgets(pod.Namespace)
		all := budgets.Covering(pod)
		counts, ok := budgets.Of(pod)
		if !ok && budgets.Beyond() && !told[pod.Namespace] {
			told[pod.Namespace] = true
			p.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonBudgetsUnread, "not evicted for a pod of higher priority: "+feasible.BeyondBudgets(pod.Namespace))
		}
		refused := p.wasRefused(pod)
		if counts != nil {
			needed[counts]++
		}
		switch b := counts; {
		case !p.cache.Priorities.MayEnd(owner)(pod):
			seen[fmt.Sprintf("PriorityClass %s counts for pods of namespace %s only", owner.Spec.PriorityClassName, owner.Namespace)] = true
		case ok && !refused && (b == nil || needed[b] <= feasible.Allowed(b)):
		case pod.Namespace != owner.Namespace:
			seen["PodDisruptionBudgets of other namespaces"] = true
		case budgets.Beyond():
			seen[feasible.BeyondBudgets(owner.Namespace)] = true
		case b != nil && needed[b] > feasible.Allowed(b):
			seen[fmt.Sprintf("PodDisruptionBudget %s allows %d evictions now, needs %d healthy pods and has %d",
				b.Name, feasible.Allowed(b), b.Status.DesiredHealthy, b.Status.CurrentHealthy)] = true
		case len(all) > 1:
			seen[fmt.Sprintf("PodDisruptionBudgets %s and %s both cover pod %s, leave one of them", all[0].Name, all[1].Name, pod.Name)] = true
		default:
			seen[fmt.Sprintf("the API server has refused to evict pod %s", pod.Name)] = true
		}
	}
	if len(seen) == 0 {
		return ""
	}
	return "evicting pods of lower priority would make room, and is not allowed: " + firstOf(slices.Sorted(maps.Keys(seen)), 4)
}

// refuse notes that the pod is not to be evicted for a while.
func (p *Preemption) refuse(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	maps.DeleteFunc(p.refused, func(_ types.UID, r refusal) bool { return !r.until.After(now) })
	p.refused[pod.UID] = refusal{pod.Namespace, now.Add(RefusedAgain)}
}

// wasRefused reports whether the pod is not to be evicted now, as that was refused.
func (p *Preemption) wasRefused(pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[pod.UID].until.After(p.clock.Now())
}
