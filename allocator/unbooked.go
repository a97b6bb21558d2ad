// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// A pod is unbooked when it was placed on a node whose ledger does not have its
// slices: somebody deleted the ledger or edited it by hand, or the pod was given up
// and is bound after all. Its containers may run all the same, those of a pod that
// is being deleted too. Until its slices are back in the ledger nothing else is
// granted on the node, or it would be granted twice.
//
// Where the ledger has no room for them any more, there is nothing to wait for: a
// container that runs keeps its devices to itself (see index.Adrift), one that does
// not run is refused by the node, and what is granted to others meanwhile the node
// adds to what runs before it starts it.

// judge finds out where the pod counts and whether it is unbooked. The caller holds
// mu.
func (a *Allocator) judge(pod *corev1.Pod) {
	node := a.count(pod)
	a.strike(pod.UID)
	if node == "" || pod.Annotations[v1alpha1.AnnotationPlacement] == "" {
		return
	}
	ledger := a.index.Ledger(node)
	if slices.Contains(a.index.Holders(pod.UID), node) || ledger != nil && slices.Contains(ledger.Status.Released, pod.UID) {
		return
	}
	if a.unbooked[node] == nil {
		a.unbooked[node] = map[types.UID]types.NamespacedName{}
	}
	a.unbooked[node][pod.UID] = podstate.KeyOf(pod)
}

// strike takes the pod off the unbooked ones; others may have waited for that. The
// caller holds mu.
func (a *Allocator) strike(pod types.UID) {
	for node, pods := range a.unbooked {
		if _, was := pods[pod]; was {
			if delete(pods, pod); len(pods) == 0 {
				delete(a.unbooked, node)
			}
			a.wake(wakeAll)
		}
	}
}

// judgeLedger judges the pods that a new version of a ledger may concern: those
// that were unbooked, and those that only one of the two versions has, oldest first:
// those that waited for them are looked at in that order. The caller holds mu.
func (a *Allocator) judgeLedger(before *v1alpha1.SliceLedger, node string) {
	now := a.index.Ledger(node)
	concerned := a.unbookedOn(node)
	for _, differ := range []iter.Seq2[types.UID, string]{ledgerspec.Gone(before, now), ledgerspec.Gone(now, before)} {
		for uid, owner := range differ {
			if pod := a.pods[podstate.OwnerKey(owner)]; pod != nil && pod.UID == uid {
				concerned[uid] = pod
			}
		}
	}
	for _, pod := range podstate.OldestFirst(concerned) {
		a.judge(pod)
	}
}

// unsettled tells whether the node has unbooked pods whose slices can be put back.
func (a *Allocator) unsettled(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.unbooked[node]) == 0 {
		return false
	}
	ledger := a.index.Ledger(node)
	if ledger == nil {
		return false
	}
	for _, pod := range a.unbookedOn(node) {
		if _, fits := putBack(pod, ledger); fits {
			return true
		}
	}
	return false
}

// unbookedOn are the unbooked pods of a node. The caller holds mu.
func (a *Allocator) unbookedOn(node string) map[types.UID]*corev1.Pod {
	pods := map[types.UID]*corev1.Pod{}
	for uid, key := range a.unbooked[node] {
		if pod := a.pods[key]; pod != nil && pod.UID == uid {
			pods[uid] = pod
		}
	}
	return pods
}
