// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// A round is the pods that are placed together. They are decided one after the
// other, each on what those before it leave; then each ledger that got grants is
// written once, all of them beside each other, and then the pods' patches are. A
// decision costs microseconds and a request milliseconds, so what bounds the rate
// is how many requests there are and how many of them are under way.
//
// A grant counts from the decision on, so that the next one does not take the same
// room, but a pod is let go only with what its ledger was seen to have. What of a
// round fails is decided again.
type round struct {
	a *Allocator
	// drafts are the ledgers with the grants of this round, in order of the first
	// grant.
	drafts []*draft
	begun  []*corev1.Pod
}

// maxRound bounds how long a pod waits for those that are decided with it.
const maxRound = 64

// maxBacklog bounds from how many that are due those of a round are chosen.
const maxBacklog = 100 * maxRound

// placing is a pod whose slices are decided on or granted already.
type placing struct {
	pod  *corev1.Pod
	node string
	// err is why it did not become true.
	err error
}

// draft is a ledger and what it will be.
type draft struct {
	known, ledger *v1alpha1.SliceLedger
	pods          []*placing
}

// look looks at items together; the errors are in their order.
func (a *Allocator) look(ctx context.Context, items []item) []error {
	errs := make([]error, len(items))
	var ledgers, pods, gangs []int
	for i, it := range items {
		switch {
		case it.wake != 0:
			a.wakeNow(it.wake)
		case it.node != "":
			ledgers = append(ledgers, i)
		case it.pod.Name != "":
			pods = append(pods, i)
		case it.gang.Name != "":
			gangs = append(gangs, i)
		}
	}
	a.each(len(ledgers), func(k int) { errs[ledgers[k]] = a.reconcileLedger(ctx, items[ledgers[k]].node) })

	r := &round{a: a}
	defer r.end()
	placings, late := make([]*placing, len(items)), false
	// in does things one after the other, as many as there is time for.
	in := func(at []int, do func(int)) {
		a.turns.sort(items, at)
		until, over := a.Clock.Now().Add(roundTime), false
		for n, i := range at {
			if over = over || n == maxRound || n > 0 && !a.Clock.Now().Before(until); over {
				errs[i], late = yielded{}, true
				continue
			}
			if do(i); a.turns != nil {
				a.turns[items[i].namespace()]++
			}
		}
	}
	in(pods, func(i int) { placings[i], errs[i] = a.reconcilePod(ctx, r, items[i].pod) })
	r.finish(ctx, placings)
	for i, p := range placings {
		if p != nil {
			errs[i] = p.err
		}
	}
	in(gangs, func(i int) { errs[i] = a.reconcileGang(ctx, r, items[i].gang) })
	if !late {
		a.turns = nil
	} else if a.turns == nil {
		a.turns = turns{}
	}
	return errs
}

// each does n things, as many at a time as there may be requests.
func (a *Allocator) each(n int, do func(int)) {
	if a.Requests <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var g errgroup.Group
	g.SetLimit(a.Requests)
	for i := range n {
		g.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = g.Wait() // none of them fails
}

// all is each, with the errors joined.
func (a *Allocator) all(n int, do func(int) error) error {
	errs := make([]error, n)
	a.each(n, func(i int) { errs[i] = do(i) })
	return errors.Join(errs...)
}

// begin notes that the pod is being placed, so that its deletion meanwhile is not
// lost.
func (r *round) begin(pod *corev1.Pod) {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	r.a.placing[pod.UID] = ""
	delete(r.a.preemptions.letGo, pod.UID)
	r.begun = append(r.begun, pod)
}

// end drops the notes: from now on a pod counts where the API server has it.
func (r *round) end() {
	a := r.a
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range r.begun {
		delete(a.placing, pod.UID)
		a.forgetNeverRan(pod.UID)
		// One that was let go was counted then.
		if known := a.pods[podstate.KeyOf(pod)]; known != nil && known.UID == pod.UID && podstate.Ready(known) {
			a.count(known)
		}
	}
}

// grant enters what was chosen for a pod into the draft of the ledger that it was
// decided on.
func (r *round) grant(c *choice) (*placing, error) {
	d := r.draft(c.ledger)
	next := d.ledger.DeepCopy()
	if err := ledgerspec.Grant(next, c.pod.UID, podstate.KeyOf(c.pod).String(), c.plan); err != nil {
		return nil, err
	}
	if !r.a.index.Draft(d.known, next) {
		return nil, errAgain
	}
	d.ledger = next
	p := &placing{pod: c.pod, node: c.plan.Node}
	d.pods = append(d.pods, p)
	r.a.assume(p)
	return p, nil
}

// draft is the one of this version of a ledger, begun if there is none.
func (r *round) draft(known *v1alpha1.SliceLedger) *draft {
	i := slices.IndexFunc(r.drafts, func(d *draft) bool { return d.known == known })
	if i >= 0 {
		return r.drafts[i]
	}
	d := &draft{known: known, ledger: known}
	r.drafts = append(r.drafts, d)
	return d
}

// assume counts the pod where it will be, for the scheduler's filters.
func (a *Allocator) assume(p *placing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.placing[p.pod.UID] = p.node
	if known := a.pods[podstate.KeyOf(p.pod)]; known != nil && known.UID == p.pod.UID {
		a.count(known)
	}
}

// finish writes the drafts, and lets go the pods that have their slices.
func (r *round) finish(ctx context.Context, placings []*placing) {
	r.a.each(len(r.drafts), func(i int) { r.a.writeDraft(ctx, r.drafts[i]) })
	granted := slices.DeleteFunc(slices.Clone(placings), func(p *placing) bool { return p == nil || p.err != nil })
	r.a.each(len(granted), func(i int) { granted[i].err = r.a.ungate(ctx, granted[i].pod, granted[i].node) })
}

// writeDraft is the one write of a ledger in a round: in the version that was
// decided on, or not at all.
func (a *Allocator) writeDraft(ctx context.Context, d *draft) {
	if len(d.pods) == 0 {
		return
	}
	err := a.write(ctx, d.ledger)
	if err == nil {
		return
	}
	for _, p := range d.pods {
		p.err = err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.index.Drop(d.known) {
		a.wake(wakeAll)
	}
}
