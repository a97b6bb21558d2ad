// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// Round is the pods that are placed together. They are decided one after the other, each on
// what those before it leave. Then each ledger that got grants is written once, all of them
// beside each other, and then the pods' patches are. A decision costs microseconds and a
// request milliseconds. So the number of requests, and of those under way, bounds the rate.
//
// A grant counts from the decision on, so that the next one does not take the same room. But
// a pod is ungated only with what its ledger was seen to have. A decision that fails is
// made again.
type Round struct {
	b *Binder
	// drafts are the ledgers with the grants of this round, in order of the first
	// grant.
	drafts []*draft
	begun  []*corev1.Pod
}

// Pending is a pod whose slices are decided on or granted already.
type Pending struct {
	Pod  *corev1.Pod
	Node string
	// Err is why it did not become true.
	Err error
}

// draft is a ledger and what it will be.
type draft struct {
	known, ledger *v1alpha1.SliceLedger
	pods          []*Pending
	// alone is true where nothing else is to be granted with it.
	alone bool
}

// NewRound begins a round; End ends it.
func (b *Binder) NewRound() *Round { return &Round{b: b} }

// Begin notes that the pod is being placed, so that its deletion in that time is
// not lost.
func (r *Round) Begin(pod *corev1.Pod) {
	r.b.Cache.StartPlacing(pod)
	r.begun = append(r.begun, pod)
}

// End drops the notes: from now on a pod counts where the API server has it.
func (r *Round) End() { r.b.Handlers.FinishPlacing(r.begun) }

// Grant enters what was decided for a pod into the draft of the ledger that it was decided on.
func (r *Round) Grant(c *Assignment) (*Pending, error) {
	d := r.draft(c.Ledger)
	// What was refused for one pod is to keep no other from its grant.
	if is, _ := r.b.placement(c.Pod); len(d.pods) > 0 && (d.alone || is.tries > 0) {
		return nil, queue.Yield{}
	} else if is.tries > 0 {
		d.alone = true
	}
	next := d.ledger.DeepCopy()
	if err := grants.Grant(next, c.Pod.UID, podstate.KeyOf(c.Pod).String(), c.Plan, r.b.Clock.Now()); err != nil {
		return nil, err
	}
	if !r.b.Cache.Index.Draft(d.known, next) {
		return nil, queue.ErrAgain
	}
	d.ledger = next
	p := &Pending{Pod: c.Pod, Node: c.Plan.Node}
	d.pods = append(d.pods, p)
	r.b.Handlers.Assume(p.Pod, p.Node)
	return p, nil
}

// draft is the one of this version of a ledger, begun if there is none.
func (r *Round) draft(known *v1alpha1.SliceLedger) *draft {
	i := slices.IndexFunc(r.drafts, func(d *draft) bool { return d.known == known })
	if i >= 0 {
		return r.drafts[i]
	}
	d := &draft{known: known, ledger: known}
	r.drafts = append(r.drafts, d)
	return d
}

// Finish writes the drafts, and ungates the pods that have their slices. The round goes on.
func (r *Round) Finish(ctx context.Context, pending []*Pending) {
	r.b.Each(len(r.drafts), func(i int) { r.b.writeDraft(ctx, r.drafts[i]) })
	r.drafts = nil
	granted := slices.DeleteFunc(slices.Clone(pending), func(p *Pending) bool { return p == nil || p.Err != nil })
	r.b.Each(len(granted), func(i int) { granted[i].Err = r.b.Ungate(ctx, granted[i].Pod, granted[i].Node) })
}

// writeDraft is the one write of a ledger in a round: in the version that was
// decided on, or not at all.
func (b *Binder) writeDraft(ctx context.Context, d *draft) {
	if len(d.pods) == 0 {
		return
	}
	err := b.Write(ctx, d.ledger)
	if err == nil {
		return
	}
	for _, p := range d.pods {
		p.Err = b.grantRefused(p.Pod, p.Node, err)
	}
	b.Handlers.DropDraft(d.known)
}
