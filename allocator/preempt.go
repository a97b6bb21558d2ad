// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/placement"
)

// A pod whose priority is higher than that of others gets their CPU, their memory and
// whatever else of a node the scheduler deals out, by preemption: the scheduler ends them.
// It does so for pods that it has before it, and a pod at our gate it has not. So a pod for
// which there are devices, on nodes that the scheduler would refuse, is let go to one of
// these all the same where the scheduler says that it would preempt for it. Slices are
// nobody's to preempt: the devices must be free.
//
// This is for pods alone. A gang waits until there is room for all of it.

const (
	// preemptAgain is how long a pod waits for at least before it is looked again whether
	// the scheduler would preempt for it: that asks far more nodes than are asked otherwise.
	preemptAgain = 30 * time.Second
	// maxPreemptAsked is how many nodes are asked at a time.
	maxPreemptAsked = 100
)

// preemptions is what is known of pods for which others are to be ended.
type preemptions struct {
	// inVain is when it was asked last for a gated pod, and no node would do.
	inVain map[types.UID]time.Time
	// letGo are the pods that went where others are in their way.
	letGo map[types.UID]bool
	// notBefore is set when one of these was refused: this scheduler does not preempt as
	// the default one would, so that the next would be too.
	notBefore time.Time
}

// preempt chooses the node on which the scheduler would do the least harm for the pod.
// False when there is none, or it is not to be asked now.
func (t *trial) preempt(ctx context.Context, pod ask, j *judge) (bool, error) {
	if len(t.set) > 1 || !t.Filters.MayPreempt(pod.pod) || !t.preemptsNow(pod.pod) {
		return false, nil
	}
	rooms := t.index.Room()
	var best placement.Plan
	var least feasible.Harm
	plans := placement.Rank(pod.demand, rooms)
	for _, plan := range plans[:min(len(plans), maxPreemptAsked)] {
		harm, would, err := j.preempts(ctx, plan.Node)
		if err != nil {
			return false, err
		}
		if would && (best.Node == "" || harm.Compare(least) < 0) {
			best, least = plan, harm
		}
	}
	t.mu.Lock()
	if best.Node == "" {
		t.preemptions.inVain[pod.pod.UID] = t.Clock.Now()
	} else {
		t.preemptions.letGo[pod.pod.UID] = true
	}
	t.mu.Unlock()
	if best.Node == "" {
		return false, nil
	}
	t.Log.Info("the scheduler is to preempt", "pod", keyOf(pod.pod), "node", best.Node, "pods", least.Pods, "priority", least.Highest)
	i := slices.IndexFunc(rooms, func(n *placement.Node) bool { return n.Name == best.Node })
	return true, t.take(ctx, pod, best, rooms[i], j)
}

// preemptsNow tells whether it is time to ask for the pod; if not, it is looked at again
// when it is.
func (a *Allocator) preemptsNow(pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := a.preemptions.notBefore
	if last, asked := a.preemptions.inVain[pod.UID]; asked && last.Add(preemptAgain).After(due) {
		due = last.Add(preemptAgain)
	}
	wait := due.Sub(a.Clock.Now())
	if wait > 0 {
		a.enqueueAfter(itemOf(pod), wait)
	}
	return wait <= 0
}

// preemptedInVain notes that a pod is refused although the scheduler was to preempt for
// it. The caller holds mu.
func (a *Allocator) preemptedInVain(pod *corev1.Pod) {
	if a.preemptions.letGo[pod.UID] {
		delete(a.preemptions.letGo, pod.UID)
		a.preemptions.notBefore = a.Clock.Now().Add(refusedHold)
		a.Log.Info("the scheduler does not preempt; no pod is let go for it to do so for a while", "pod", keyOf(pod), "while", refusedHold.String())
	}
}

// preempts is accepts for a node that takes the pod once others are gone.
func (j *judge) preempts(ctx context.Context, node string) (harm feasible.Harm, would bool, err error) {
	if j.unsettled(node) {
		return harm, false, nil
	}
	if err := j.begin(ctx); err != nil {
		return harm, false, err
	}
	return j.cycle.Preempts(ctx, node)
}
