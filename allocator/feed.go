// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// SetPod takes in a pod that the watch shows. Objects are kept: nobody may change
// them afterwards.
func (a *Allocator) SetPod(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Agents != nil {
		a.agentChanged(a.Agents.Set(pod))
	}
	if old := a.pods[podstate.KeyOf(pod)]; old != nil && old.UID != pod.UID {
		if podstate.Older(pod, old) {
			return
		}
		// Its deletion was missed, and with it how far the pod had come.
		a.forget(old)
	}
	a.set(pod)
}

// setWritten takes in a pod that a write or a live read returned. A pod whose
// deletion was seen in between stays forgotten. Like in the caches, what nobody reads is not
// kept.
func (a *Allocator) setWritten(pod *corev1.Pod) {
	pod.ManagedFields = nil
	podstate.TrimPod(pod)
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.pods[podstate.KeyOf(pod)]; old != nil && old.UID == pod.UID {
		a.set(pod)
	}
}

func (a *Allocator) set(pod *corev1.Pod) {
	key := podstate.KeyOf(pod)
	if old := a.pods[key]; old != nil && podstate.Older(pod, old) {
		return
	} else if old != nil && old.ResourceVersion == pod.ResourceVersion {
		// The watch shows what a write has answered; its copy is the smaller one.
		a.pods[key] = pod
		return
	}
	a.join(pod)
	if !podstate.Ours(pod) {
		delete(a.pods, key)
		a.count(pod)
		return
	}
	if old := a.pods[key]; a.queue != nil && podstate.Ready(pod) && (old == nil || !podstate.Arrived(old)) {
		a.arrivals = append(a.arrivals, pod)
	}
	a.pods[key] = pod
	a.judge(pod)
	if len(a.unbooked) > 0 {
		if node := podstate.TargetNode(pod); len(a.unbooked[node]) > 0 {
			a.enqueue(item{node: node})
		}
	}
	if !podstate.Ready(pod) {
		delete(a.waiting, key)
		delete(a.preemptions.inVain, pod.UID)
		a.forgetWait(pod)
	}
	a.enqueuePod(pod)
}

// DeletePod takes out a pod. last is its state at the deletion when exact, else
// some earlier one.
func (a *Allocator) DeletePod(last *corev1.Pod, exact bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Agents != nil {
		a.agentChanged(a.Agents.Delete(last))
	}
	if exact && last.Spec.NodeName == "" {
		holders := a.index.Holders(last.UID)
		if _, placing := a.placing[last.UID]; placing || len(holders) > 0 {
			a.neverRan[last.UID] = true
		}
		for _, node := range holders {
			a.enqueue(item{node: node})
		}
	}
	a.forget(last)
}

func (a *Allocator) forget(pod *corev1.Pod) {
	a.countOn(pod, "")
	a.nominate(pod, "")
	a.arrivedOrGone(pod.UID)
	a.forgetWait(pod)
	a.strike(pod.UID)
	delete(a.refusals, pod.UID)
	delete(a.preparations, pod.UID)
	delete(a.preemptions.inVain, pod.UID)
	delete(a.preemptions.letGo, pod.UID)
	a.leave(pod)
	if known := a.pods[podstate.KeyOf(pod)]; known != nil && known.UID == pod.UID {
		delete(a.pods, podstate.KeyOf(pod))
		delete(a.waiting, podstate.KeyOf(pod))
	}
}

// count counts the pod where it is or will be, and tells where that is.
func (a *Allocator) count(pod *corev1.Pod) (node string) {
	node = a.seat(pod)
	a.countOn(pod, node)
	a.nominate(pod, podstate.NominatedNode(pod, node))
	a.onTheWay(pod, node)
	return node
}

// seat is the node that the pod takes room on, as far as the scheduler's filters
// look. A pod that is over takes none, and neither does one that the scheduler
// refuses and that has no slices: it was given up, or lost them. It takes room
// again from the moment on that it is bound or has slices. One that is being placed, or
// whose node makes ready for it, takes it already.
func (a *Allocator) seat(pod *corev1.Pod) string {
	node := podstate.TargetNode(pod)
	if podstate.Ready(pod) {
		node = a.placing[pod.UID]
		if p, waits := a.preparations[pod.UID]; node == "" && waits && slices.Contains(a.index.Holders(pod.UID), p.node) {
			node = p.node
		}
	}
	if podstate.Terminal(pod) || podstate.Unschedulable(pod) && !slices.Contains(a.index.Holders(pod.UID), node) {
		return ""
	}
	return node
}

// countOn tells the filters where the pod is, and wakes whom that may help.
func (a *Allocator) countOn(pod *corev1.Pod, node string) {
	if a.tellFilters(pod, node) {
		a.wake(wakeRefused)
	}
}

// tellFilters tells the filters where the pod is. Their error means that the cache and
// its mirror differ, which only a mistake in this program can cause.
func (a *Allocator) tellFilters(pod *corev1.Pod, node string) (changed bool) {
	changed, err := a.Filters.Count(pod, node)
	if err != nil {
		a.Log.Error(err, "counting a pod on its node", "pod", podstate.KeyOf(pod), "node", node)
	}
	return changed
}

// nominate tells the filters for which node others are being ended for the pod's sake,
// empty for none.
func (a *Allocator) nominate(pod *corev1.Pod, node string) {
	changed, err := a.Filters.Nominate(pod, node)
	if err != nil {
		a.Log.Error(err, "noting a nominated pod", "pod", podstate.KeyOf(pod), "node", node)
	}
	if changed {
		a.wake(wakeRefused)
	}
}

// SetLedger takes in a ledger that the watch shows or a write returned.
func (a *Allocator) SetLedger(ledger *v1alpha1.SliceLedger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.index.Ledger(ledger.Name)
	roomy := a.index.Put(ledger)
	if a.index.Ledger(ledger.Name) != ledger {
		return // the watch shows what a write has answered, or what was before it
	}
	a.enqueue(item{node: ledger.Name})
	a.judgeLedger(before, ledger.Name)
	for uid := range a.neverRan {
		a.forgetNeverRan(uid)
	}
	if roomy {
		a.wake(wakeAll)
	}
}

// forgetNeverRan drops the note about a deleted pod once no ledger holds it.
func (a *Allocator) forgetNeverRan(pod types.UID) {
	if _, placing := a.placing[pod]; !placing && len(a.index.Holders(pod)) == 0 {
		delete(a.neverRan, pod)
	}
}

// DeleteLedger takes out a ledger.
func (a *Allocator) DeleteLedger(ledger *v1alpha1.SliceLedger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.index.Ledger(ledger.Name)
	a.index.Delete(ledger)
	a.judgeLedger(before, ledger.Name)
}

// SetNode takes in a node. old is nil for a new one.
func (a *Allocator) SetNode(old, node *corev1.Node) {
	a.Filters.SetNode(node)
	if old == nil || nodeChanged(old, node) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.wake(wakeRefused)
	}
}

// nodeChanged leaves out what a heartbeat changes.
func nodeChanged(old, node *corev1.Node) bool {
	return !equality.Semantic.DeepEqual(old.Spec, node.Spec) ||
		!equality.Semantic.DeepEqual(old.Labels, node.Labels) ||
		!equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) ||
		!equality.Semantic.DeepEqual(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures)
}

// DeleteNode takes out a node. Its ledger goes by itself. Pods that are spread may have
// waited for the domain that was its alone.
func (a *Allocator) DeleteNode(node *corev1.Node) {
	if err := a.Filters.DeleteNode(node.Name); err != nil {
		a.Log.Error(err, "forgetting a node", "node", node.Name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wake(wakeRefused)
}

// Changed says that something else changed that the filters look at.
func (a *Allocator) Changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claimsChanged()
	a.wake(wakeRefused)
}

// granted are the pods with slices in a ledger that are known, newest version.
func (a *Allocator) granted(ledger *v1alpha1.SliceLedger) map[types.UID]*corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := map[types.UID]*corev1.Pod{}
	for uid, owner := range ledgerspec.Pods(ledger) {
		if pod := a.pods[podstate.OwnerKey(owner)]; pod != nil && pod.UID == uid {
			known[uid] = pod
		}
	}
	return known
}
