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

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
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
// at once something has changed in a namespace of barred. rounds is how often others were evicted for
// the owner.
type look struct {
	at, until time.Time
	barred    map[string]bool
	rounds    int
}

// refusal is of a pod's eviction. Where it stays so the pod is not asked about before that time,
// whatever changes: one whose owner opens and shuts a budget keeps nobody waiting again and again.
type refusal struct {
	namespace string
	until     time.Time
	stays     bool
}

// VictimsChanged says that pods of the namespace may be evicted that might not be before, of any
// where it is empty. Owners for which none might be look again.
func (p *Preemption) VictimsChanged(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	maps.DeleteFunc(p.refused, func(_ types.UID, r refusal) bool { return !r.stays && (namespace == "" || r.namespace == namespace) })
	for owner, l := range p.looked {
		if l.barred[namespace] || namespace == "" && len(l.barred) > 0 {
			p.lookAgain(owner, l)
		}
	}
}

// barring says how many of the pods cannot leave for the asker, and why. Only what is of its namespace
// is named.
func (p *Preemption) barring(pods []*corev1.Pod, asker reservation.Asker) string {
	needed, seen, emitted, barred := map[*policyv1.PodDisruptionBudget]int{}, map[string]int{}, map[string]bool{}, 0
	for _, pod := range slices.SortedFunc(slices.Values(pods), podstate.ByAge) {
		budgets := p.filters.Budgets(pod.Namespace)
		all := budgets.Covering(pod)
		counts, ok := budgets.Of(pod)
		if !ok && budgets.Beyond() && !emitted[pod.Namespace] {
			emitted[pod.Namespace] = true
			p.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonBudgetsUnread, "not evicted for a pod of higher priority: "+feasible.BeyondBudgets(pod.Namespace))
		}
		refused, others := p.wasRefused(pod), pod.Namespace != asker.Item.Namespace()
		if counts != nil {
			needed[counts]++
		}
		why := ""
		switch b := counts; {
		case !asker.Priority.Above(p.cache.Priorities.Of(pod)):
			why = fmt.Sprintf("PriorityClass %s counts for pods of namespace %s only", asker.Pods[0].Spec.PriorityClassName, asker.Priority.Namespace)
		case p.isLate(pod) && others:
			why = "pods of other namespaces that are being deleted have not ended in time"
		case p.isLate(pod):
			why = fmt.Sprintf("pod %s is being deleted, and has not ended %v after its grace period", pod.Name, LeaveLate)
		case ok && !refused && (b == nil || needed[b] <= feasible.Allowed(b)):
			why = p.barringGang(pod, asker, others)
		case others:
			why = "PodDisruptionBudgets of other namespaces"
		case budgets.Beyond():
			why = feasible.BeyondBudgets(pod.Namespace)
		case b != nil && needed[b] > feasible.Allowed(b):
			why = fmt.Sprintf("PodDisruptionBudget %s allows %d evictions now, needs %d healthy pods and has %d",
				b.Name, feasible.Allowed(b), b.Status.DesiredHealthy, b.Status.CurrentHealthy)
		case len(all) > 1:
			why = fmt.Sprintf("PodDisruptionBudgets %s and %s both cover pod %s, leave one of them", all[0].Name, all[1].Name, pod.Name)
		default:
			why = fmt.Sprintf("the API server has refused to evict pod %s", pod.Name)
		}
		if why != "" {
			seen[why]++
			barred++
		}
	}
	reasons := slices.Sorted(maps.Keys(seen))
	if barred == 0 {
		return ""
	}
	if len(reasons) > 1 {
		for i, why := range reasons {
			reasons[i] = fmt.Sprintf("%d: %s", seen[why], why)
		}
	}
	return fmt.Sprintf("%d pod(s) of lower priority would make room and cannot leave: %s", barred, v1alpha1.NamesText(reasons, 4))
}

// barringGang is why the pod's gang may not end as a whole, empty where it may, or the pod alone.
func (p *Preemption) barringGang(pod *corev1.Pod, asker reservation.Asker, others bool) string {
	name, in := podrequest.GroupOf(pod)
	if !in || p.groups.Ends(name) == podgroup.EndPods {
		return ""
	}
	for _, m := range p.groups.Gang(name).Members {
		switch {
		case podstate.Gated(m) || podstate.Terminal(m) || asker.Priority.Above(p.cache.Priorities.Of(m)):
		case others:
			return "gangs of other namespaces, of which a pod has no lower priority"
		default:
			return fmt.Sprintf("%s ends as a whole, and pod %s of it has no lower priority", name, m.Name)
		}
	}
	return ""
}

// isLate reports whether the pod was to have ended, and has not.
func (p *Preemption) isLate(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && !podstate.Terminal(pod) && !p.clock.Now().Before(pod.DeletionTimestamp.Add(LeaveLate))
}

// refuse notes that the pod is not to be evicted for a while, or for longer.
func (p *Preemption) refuse(pod *corev1.Pod, stays bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	maps.DeleteFunc(p.refused, func(_ types.UID, r refusal) bool { return !r.until.After(now) })
	after := RefusedAgain
	if stays {
		after = StaysAgain
	}
	p.refused[pod.UID] = refusal{pod.Namespace, now.Add(after), stays}
}

// wasRefused reports whether the pod is not to be evicted now, as that was refused.
func (p *Preemption) wasRefused(pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[pod.UID].until.After(p.clock.Now())
}
