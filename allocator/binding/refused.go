// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/refusal"
	"vernier.dev/vernier/api/v1alpha1"
)

// A write may be refused by others than we: an admission policy, a webhook that is away, a rule
// of a CRD. The next try then fares the same until somebody changes something. So the pauses
// between tries grow, and a pod gives its slices back after a few.
const (
	// FewTries is how often a pod's grant or gate patch may be refused in a row, some 3 s,
	// before it keeps nothing.
	FewTries = 6
	// FirstPause and LastPause bound the pause after a refusal, which doubles with each.
	FirstPause = 100 * time.Millisecond
	LastPause  = 5 * time.Minute
	// RetryAfterChange is how long after a refusal it is tried again at the earliest because
	// something has changed. A tenant may change its pod all the time.
	RetryAfterChange = 5 * time.Second
	// maxAvoided bounds the nodes that a pod avoids since their ledgers were refused.
	maxAvoided = 8
)

// Names of the writes, in the metric.
const (
	writeGate         = "gate"
	writeCondition    = "condition"
	writeNomination   = "nomination"
	writePlacement    = "placement"
	writeDeletion     = "deletion"
	writeEviction     = "eviction"
	writeLedger       = "ledger"
	writeLedgerStatus = "ledger_status"
)

var writes = []string{writeGate, writeCondition, writeNomination, writePlacement, writeDeletion, writeEviction, writeLedger, writeLedgerStatus}

// target is what is written: of a pod or a ledger, by its UID. A grant in
// a ledger and the gate patch are both the placement of a pod, with no write of their own here.
type target struct{ write, of string }

// refused is a target whose last write was refused.
type refused struct {
	tries       int
	last, until time.Time
	// write is the one that was refused. version is the pod's; changed is true once something else has changed.
	write, version string
	changed        bool
	text           string
	// nodes have ledgers that were refused for the pod.
	nodes []string
}

// refusals are the writes that are refused at the moment. The zero value has none.
type refusals struct {
	mu sync.Mutex
	by map[target]*refused
}

// get is what is noted of a write, and when it is to be tried again.
func (r *refusals) get(of target, version string) (is refused, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by[of] == nil {
		return refused{}, time.Time{}
	}
	is = *r.by[of]
	if again := is.last.Add(RetryAfterChange); (is.changed || is.version != version) && again.Before(is.until) {
		return is, again
	}
	return is, is.until
}

// note counts a refusal and returns it as it is now. The caller has seen that the pod is known.
func (r *refusals) note(of target, write, version, node string, now time.Time, text string) refused {
	r.mu.Lock()
	defer r.mu.Unlock()
	is := r.by[of]
	if is == nil {
		if r.by == nil {
			r.by = map[target]*refused{}
		}
		is = &refused{}
		r.by[of] = is
	}
	pause := LastPause
	if is.tries < 12 { // 100 ms doubled so often is more than LastPause
		pause = min(LastPause, FirstPause<<is.tries)
	}
	is.tries++
	is.last, is.until, is.write, is.version, is.changed, is.text = now, now.Add(pause), write, version, false, text
	if node != "" && !slices.Contains(is.nodes, node) {
		is.nodes = append(is.nodes, node)
		is.nodes = is.nodes[max(0, len(is.nodes)-maxAvoided):]
	}
	return *is
}

// forget ends what is noted of a target: the write was taken, or there is nothing to write to.
func (r *refusals) forget(of target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, of)
}

// Forget is for a pod that is gone.
func (b *Binder) Forget(pod *corev1.Pod) {
	b.refusals.mu.Lock()
	defer b.refusals.mu.Unlock()
	for _, write := range []string{"", writeCondition, writeNomination, writeDeletion, writeEviction} {
		delete(b.refusals.by, target{write, string(pod.UID)})
	}
}

// RetryRefused has all that was refused tried again: a policy has changed, or a namespace.
func (b *Binder) RetryRefused() {
	b.refusals.mu.Lock()
	var of []types.UID
	var nodes []string
	for target, is := range b.refusals.by {
		is.changed = true
		of, nodes = append(of, types.UID(target.of)), append(nodes, is.nodes...)
	}
	b.refusals.mu.Unlock()
	for _, uid := range of {
		if pod := b.Cache.PodOf(uid); pod != nil {
			b.Queue.AddPod(pod)
			nodes = append(nodes, podstate.TargetNode(pod))
		}
	}
	for _, node := range nodes {
		if node != "" {
			b.Queue.Add(queue.Item{Node: node})
		}
	}
}

// placement is get for the placement of a pod.
func (b *Binder) placement(pod *corev1.Pod) (is refused, due time.Time) {
	return b.refusals.get(target{of: string(pod.UID)}, pod.ResourceVersion)
}

// putOff reports whether it is too early. The pod is looked at again when it is not.
func (b *Binder) putOff(pod *corev1.Pod, due time.Time) bool {
	wait := due.Sub(b.Clock.Now())
	if wait > 0 {
		b.Queue.AddPodAfter(pod, wait)
	}
	return wait > 0
}

// Refused is why none of the pods is to be placed now: a few tries for one of them were refused.
// They are looked at again when it is time for the next. Empty where they may be placed.
func (b *Binder) Refused(pods ...*corev1.Pod) (text string) {
	for _, pod := range pods {
		if is, due := b.placement(pod); is.tries >= FewTries && b.putOff(pod, due) {
			return is.text
		}
	}
	return ""
}

// Avoids reports whether the pod is not to be granted slices on the node now: a write of its
// ledger was refused a moment ago. The pod is looked at again then.
func (b *Binder) Avoids(pod *corev1.Pod, node string) bool {
	is, due := b.placement(pod)
	return slices.Contains(is.nodes, node) && b.putOff(pod, due)
}

// grantRefused notes it of a pod where its grant in a ledger is refused; another error stays as it
// is.
func (b *Binder) grantRefused(pod *corev1.Pod, node string, err error) error {
	if !refusal.Is(err) {
		return err
	}
	return b.placementRefused(pod, writeLedger, node, err)
}

// placementRefused notes that the API server refuses to have a pod placed on a node. It is tried
// again after a pause; or at once where it keeps slices no more, or may go to another node.
func (b *Binder) placementRefused(pod *corev1.Pod, write, node string, err error) error {
	what, avoid, log := "ungate it", "", b.Log.WithValues("pod", podstate.KeyOf(pod), "write", write)
	if write == writeLedger {
		log = log.WithValues("node", node)
		what, avoid = fmt.Sprintf("write its slices into the ledger of node %s", node), node
	} else {
		refusedWrites.WithLabelValues(write).Inc()
	}
	if b.Cache.Current(pod) == nil {
		return queue.Yield{} // Forget has been called, or will be
	}
	is := b.refusals.note(target{of: string(pod.UID)}, write, pod.ResourceVersion, avoid, b.Clock.Now(), fmt.Sprintf("the API server does not let the allocator %s: %v", what, err))
	log.Info("Write refused", "tries", is.tries, "again", is.until, "err", err)
	b.Queue.AddPodAfter(pod, is.until.Sub(b.Clock.Now()))
	if is.tries >= FewTries || avoid != "" {
		return queue.Yield{}
	}
	return nil
}

// RetryText is what there is to do about a refusal.
const RetryText = "It holds no slices, and is tried again when the pod, its namespace or an admission policy or webhook changes. At the latest it is after 5 minutes"

// attempt does a write of a pod's that others can refuse, and that is not its placement. What is
// refused is no error, so that what else there is to do is done: the pod has an event after a few
// tries, and it, or the ledger of its node, is looked at after a pause.
func (b *Binder) attempt(write string, pod *corev1.Pod, do func() error) error {
	of, again := target{write, string(pod.UID)}, b.Queue.ItemOf(pod)
	if pod.Spec.NodeName != "" {
		again = queue.Item{Node: pod.Spec.NodeName}
	}
	// Only a person's change of the pod counts: its status changes all the time.
	if is, due := b.refusals.get(of, ""); is.tries > 0 && due.After(b.Clock.Now()) {
		b.Queue.AddAfter(again, due.Sub(b.Clock.Now()))
		return nil
	}
	err := do()
	if err == nil {
		b.refusals.forget(of)
	}
	if !refusal.Is(err) {
		return err
	}
	b.Queue.AddAfter(again, b.writeRefused(write, pod, err))
	return nil
}

// writeRefused notes a refusal, with an event once it has lasted, and returns the pause.
func (b *Binder) writeRefused(write string, pod *corev1.Pod, err error) time.Duration {
	refusedWrites.WithLabelValues(write).Inc()
	if b.Cache.Current(pod) == nil {
		return LastPause
	}
	now := b.Clock.Now()
	is := b.refusals.note(target{write, string(pod.UID)}, write, "", "", now, err.Error())
	b.Log.Info("Write refused", "pod", podstate.KeyOf(pod), "write", write, "tries", is.tries, "again", is.until, "err", err)
	// Of an eviction there are no tries in a row: others are chosen.
	if is.tries == FewTries || is.tries == 1 && write == writeEviction {
		b.Notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonWriteRefused, fmt.Sprintf(
			"the API server refuses the allocator's %s of this pod: %v. It is tried again when an admission policy or webhook or the namespace changes, at the latest after 5 minutes", write, err))
	}
	return is.until.Sub(now)
}

// DeletionRefused reports whether the pod was to be deleted, and a few tries were refused.
func (b *Binder) DeletionRefused(pod *corev1.Pod) bool {
	is, _ := b.refusals.get(target{writeDeletion, string(pod.UID)}, "")
	return is.tries >= FewTries
}

// ledgerRefused notes that a write of a ledger was refused, with an event of the ledger once
// that has lasted, and returns the pause.
func (b *Binder) ledgerRefused(write string, ledger *v1alpha1.SliceLedger, err error) time.Duration {
	refusedWrites.WithLabelValues(write).Inc()
	now := b.Clock.Now()
	is := b.refusals.note(target{write, string(ledger.UID)}, write, "", ledger.Name, now, err.Error())
	if is.tries == FewTries {
		b.Notify.EmitOn(ledger, corev1.EventTypeWarning, notify.ReasonWriteRefused, fmt.Sprintf(
			"the API server refuses what the allocator writes here: %v. It is tried again, at the latest after 5 minutes", err))
	}
	return is.until.Sub(now)
}

// TakeBack takes the slices of a gated pod out of a node's ledger.
func (b *Binder) TakeBack(ctx context.Context, pod *corev1.Pod, node string) error {
	ledger := b.Cache.Index.Ledger(node)
	if ledger == nil {
		return nil
	}
	// A held slice needs no live read: the hold ends before the pod is ungated, and the
	// compare-and-swap detects the race. Else our watch may be behind, and another leader
	// may have ungated the pod.
	if grants.Held(ledger)[pod.UID] == nil {
		live, err := b.Live(ctx, pod)
		switch {
		case err != nil:
			return err
		case live == nil:
			return ErrGone
		case live.ResourceVersion != pod.ResourceVersion:
			return queue.ErrAgain
		}
	}
	return b.Release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID })
}
