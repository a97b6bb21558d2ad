// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/podstate"
)

// How long a pod waits for other pods to be bound, in all, over its whole life. When a pod
// is bound is for its author to say: one whose schedulerName names no scheduler never is.
// After that the others count as bound to the nodes that they are pinned to: the filters
// count them there anyhow, and are told what they take of volumes and devices. If the
// scheduler then refuses the waiting pod, it is given up like any other that is refused.
const (
	// maxWaitWithin is for pods of the same namespace: as long as a placed pod may be
	// refused before it is given up.
	maxWaitWithin = 30 * time.Second
	// maxWaitAcross is for pods of other namespaces. A bind takes milliseconds; this is
	// long enough for a scheduler that is busy, and little for another tenant to take.
	maxWaitAcross = 2 * time.Second
)

// bindWait is how long one gated pod has waited for others to be bound.
type bindWait struct {
	within, across time.Duration
	// first is the pod that it waits for now, since then; empty if it waits for none.
	first   types.UID
	since   time.Time
	foreign bool
}

// left is how long a pod that has waited this long may wait for a pod of its namespace,
// or of another. It is called on nil for a pod that has not waited.
func (w *bindWait) left(foreign bool) time.Duration {
	switch {
	case w == nil && foreign:
		return maxWaitAcross
	case w == nil:
		return maxWaitWithin
	case foreign:
		return maxWaitAcross - w.across
	default:
		return maxWaitWithin - w.within
	}
}

// startWait notes that the pod waits for the first one. Time counts once, however many it
// waits for. The members of a gang wait together, so each of them is charged. The caller
// holds mu.
func (a *Allocator) startWait(pod, first *corev1.Pod) {
	key := podstate.KeyOf(pod)
	if known := a.pods[key]; known == nil || known.UID != pod.UID {
		return // already deleted: nothing would end the note
	}
	w := a.order.waits[pod.UID]
	if w == nil {
		w = &bindWait{}
		a.order.waits[pod.UID] = w
	}
	w.first, w.since, w.foreign = first.UID, a.Clock.Now(), first.Namespace != pod.Namespace
	if a.order.behind[first.UID] == nil {
		a.order.behind[first.UID] = map[types.NamespacedName]bool{}
	}
	a.order.behind[first.UID][key] = true
}

// endWait charges the pod for the time that it has waited since startWait. The caller
// holds mu.
func (a *Allocator) endWait(pod *corev1.Pod) {
	w := a.order.waits[pod.UID]
	if w == nil || w.first == "" {
		return
	}
	waited := a.Clock.Since(w.since)
	if w.foreign {
		w.across += waited
	} else {
		w.within += waited
	}
	if behind := a.order.behind[w.first]; behind != nil {
		if delete(behind, podstate.KeyOf(pod)); len(behind) == 0 {
			delete(a.order.behind, w.first)
		}
	}
	w.first = ""
}

// forgetWait is for a pod that is past our gate or gone. The caller holds mu.
func (a *Allocator) forgetWait(pod *corev1.Pod) {
	a.endWait(pod)
	delete(a.order.waits, pod.UID)
}

// maxReserved bounds for how many others the filters are told what they take, in each
// decision on a pod that may take the same. It takes about as long as to decide on each, and
// ends after roundTime.
const maxReserved = 32

// reserveForOthers has the filters take for taken what those pods will take of volumes and of
// other drivers' devices that are on their way and not waited for any more.
func (t *trial) reserveForOthers(ctx context.Context) error {
	if t.others {
		return nil
	}
	t.others = true
	until := t.Clock.Now().Add(roundTime)
	for _, other := range t.notWaitedFor() {
		if !t.Clock.Now().Before(until) {
			break
		}
		node := podstate.TargetNode(other)
		// Counted there it would be in its own way.
		t.mu.Lock()
		t.tellFilters(other, "")
		t.mu.Unlock()
		err := t.reserveOn(ctx, other, node)
		t.mu.Lock()
		if known := t.pods[podstate.KeyOf(other)]; known != nil && known.UID == other.UID {
			t.tellFilters(known, t.seat(known))
		}
		t.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, errStale):
			// What its author wrote fails it, an expression of a claim for one. That is no
			// matter of the pods that are decided on.
			t.Log.V(1).Info("cannot say what another pod takes", "pod", podstate.KeyOf(other), "node", node, "cause", err.Error())
		}
	}
	return nil
}

// reserveOn has the filters take for taken what the pod will take on its node, errStale if
// they refuse it there.
func (t *trial) reserveOn(ctx context.Context, pod *corev1.Pod, node string) error {
	cycle, err := t.Filters.Start(ctx, pod)
	if err != nil {
		return err
	}
	switch against, err := cycle.Refusals(ctx, node); {
	case err != nil:
		return err
	case len(against) > 0:
		return errStale
	}
	return t.reserveFor(ctx, cycle, node)
}

// notWaitedFor are the pods on their way that may take what pods of the set may, the oldest of
// them. Those that are to be waited for were waited for.
func (t *trial) notWaitedFor() []*corev1.Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order.taking) == 0 {
		return nil
	}
	inSet, takes := map[types.UID]bool{}, map[string]bool{}
	for _, p := range t.set {
		inSet[p.pod.UID] = true
		for _, what := range t.Filters.Undecided(p.pod) {
			takes[what] = true
		}
	}
	others := map[types.UID]*corev1.Pod{}
	for uid, theirs := range t.order.taking {
		if other := t.order.unbound[uid]; len(other.Spec.ResourceClaims) > 0 && other.Namespace == t.set[0].pod.Namespace {
			continue // the claim may be the same, and what is being allocated the filters give to nobody
		}
		if !inSet[uid] && slices.ContainsFunc(theirs, func(what string) bool { return takes[what] }) {
			others[uid] = t.order.unbound[uid]
		}
	}
	oldest := podstate.OldestFirst(others)
	return oldest[:min(len(oldest), maxReserved)]
}
