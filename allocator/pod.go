// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// reconcilePod looks at one pod of ours. What it returns is on its way in the round.
func (a *Allocator) reconcilePod(ctx context.Context, r *round, key types.NamespacedName) (*placing, error) {
	pod := a.pod(key)
	switch {
	case pod == nil:
		return nil, nil
	case podstate.Ready(pod) && !a.alone(pod):
		a.unite(pod)
		return nil, nil
	case podstate.Ready(pod) && a.queues(pod):
		return nil, nil
	case podstate.Ready(pod):
		r.begin(pod)
		return a.place(ctx, r, pod)
	case podstate.WaitsForOtherGates(pod):
		return nil, nil
	default:
		return nil, a.follow(ctx, pod)
	}
}

// place decides which slices a gated pod gets, or finds those that it has.
func (a *Allocator) place(ctx context.Context, r *round, pod *corev1.Pod) (*placing, error) {
	demand, shares, err := asksOf(pod)
	if err != nil {
		a.refuse(pod, err)
		return nil, nil
	}
	p, done, err := a.adopt(ctx, pod, shares)
	if done || err != nil {
		return p, err
	}
	chosen, err := a.decide(ctx, ask{pod, demand})
	if chosen == nil || err != nil {
		return nil, err
	}
	return r.grant(chosen)
}

// asksOf reads what the pod asks for. Errors name the field and the remedy.
func asksOf(pod *corev1.Pod) (*placement.Demand, *v1alpha1.Shares, error) {
	// Beyond the bounds the cache has no more of the pod than this.
	if text := pod.Annotations[podstate.AnnotationTrimmed]; text != "" {
		return nil, nil, errors.New(text)
	}
	if err := v1alpha1.CheckSchedulingTerms(&pod.Spec); err != nil {
		return nil, nil, err
	}
	return podrequest.Of(pod)
}

// adopt finishes what an allocator began before it died between its writes: a gated
// pod that has slices gets the placement that the ledger says.
func (a *Allocator) adopt(ctx context.Context, pod *corev1.Pod, shares *v1alpha1.Shares) (p *placing, done bool, err error) {
	node, err := a.seatOf(ctx, pod, shares)
	switch {
	case errors.Is(err, errGone):
		return nil, true, nil
	case err != nil || node == "":
		return nil, false, err
	}
	p = &placing{pod: pod, node: node}
	a.assume(p)
	// Its gang held them for it, and it needs the others no longer.
	if err := a.commit(ctx, []*placing{p}); err != nil {
		return nil, false, err
	}
	return p, true, nil
}

// seatOf is the node where a gated pod has the slices that it asks for and where the
// scheduler accepts it, empty when there is none. Others were written for what the
// pod was before, or by somebody who edits ledgers: they go back.
func (a *Allocator) seatOf(ctx context.Context, pod *corev1.Pod, shares *v1alpha1.Shares) (seat string, err error) {
	for _, node := range a.index.Holders(pod.UID) {
		good := false
		if ledger := a.index.Ledger(node); ledger != nil && seat == "" && ledgerspec.Serves(ledger, pod.UID, shares) {
			if good, err = a.accepted(ctx, pod, node); err != nil {
				return "", err
			}
		}
		if good {
			seat = node
		} else if err := a.takeBack(ctx, pod, node); err != nil {
			return "", err
		}
	}
	return seat, nil
}

// accepted tells whether the scheduler would take the pod on the node, or preempt for it
// there.
func (a *Allocator) accepted(ctx context.Context, pod *corev1.Pod, node string) (bool, error) {
	// One that waits for its node to make ready for it is counted there, and would be in
	// its own way.
	a.mu.Lock()
	a.tellFilters(pod, "")
	a.mu.Unlock()
	cycle, err := a.Filters.Start(ctx, pod)
	if err != nil {
		return false, err
	}
	against, err := cycle.Refusals(ctx, node)
	if err != nil || len(against) == 0 {
		return err == nil, err
	}
	if !a.Filters.MayPreempt(pod) || !a.preemptsNow(pod) {
		return false, nil
	}
	_, would, err := cycle.Preempts(ctx, node)
	if would {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.preemptions.letGo[pod.UID] = true
	}
	return would, err
}

// errGone says that the pod was deleted. The watch will show it, and whether it
// ever ran, and so who takes back its slices.
var errGone = errors.New("the pod is gone")

// takeBack takes the slices of a gated pod out of a node's ledger.
func (a *Allocator) takeBack(ctx context.Context, pod *corev1.Pod, node string) error {
	ledger := a.index.Ledger(node)
	if ledger == nil {
		return nil
	}
	// Who lets a pod go ends the hold on its slices before, so that with those of a
	// held one the compare-and-swap is fence enough. Else our watch may be behind,
	// and another leader have let the pod go meanwhile.
	if ledgerspec.Held(ledger)[pod.UID] == nil {
		live, err := a.live(ctx, pod)
		switch {
		case err != nil:
			return err
		case live == nil:
			return errGone
		case live.ResourceVersion != pod.ResourceVersion:
			return errAgain
		}
	}
	return a.release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID })
}

// refuse tells why a pod can never be placed as it is. It stays gated: what it
// says may be changed, and then it is looked at again.
func (a *Allocator) refuse(pod *corev1.Pod, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w, known := a.waits(pod, causeInvalid)
	if !known {
		return
	}
	w.refused, w.elsewhere = false, false
	// Another text is another mistake: whoever has just mended one is told at once.
	if news, told := w.told.by[causeInvalid]; !told || w.told.last != causeInvalid || news.text != err.Error() {
		w.told.enter(causeInvalid, err.Error(), a.Clock.Now())
		// While what was told before is not known yet, a mistake is told at once: these
		// pods are few.
		if !a.wasHeard(pod, err.Error()) {
			a.tell(pod, corev1.EventTypeWarning, reasonInvalid, err.Error())
		}
	}
	a.waiting[podstate.KeyOf(pod)] = w
}
