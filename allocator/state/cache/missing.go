// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/missing"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// A pod has a missing grant when it was placed on a node whose ledger does not have its
// slices: somebody deleted the ledger or edited it by hand, or the pod was given up and is
// bound after all. Its containers may run all the same, those of a pod that is being deleted
// too. Until its slices are back in the ledger nothing else is granted on the node, or it
// would be granted twice.
//
// Where the ledger has no room for them any more, there is nothing to wait for: a container
// that runs keeps its devices to itself (see index.Ungranted), and one that does not run is
// refused by the node, which adds up what runs before it starts anything.

// track finds out where the pod counts and whether its grant is missing.
func (c *Cache) track(pod *corev1.Pod, ch *Changes) {
	node := c.count(pod, ch)
	c.untrack(pod.UID, ch)
	if node == "" || !podrequest.Placed(pod) {
		return
	}
	ledger := c.Index.Ledger(node)
	if slices.Contains(c.Index.Holders(pod.UID), node) {
		return
	}
	// A pod that was released is over, but for one whose idle slice was taken back: that is evicted.
	if ledger != nil && slices.Contains(ledger.Status.Released, pod.UID) && !podrequest.OnIdle(pod) {
		return
	}
	if c.missingGrants[node] == nil {
		c.missingGrants[node] = map[types.UID]types.NamespacedName{}
	}
	c.missingGrants[node][pod.UID] = podstate.KeyOf(pod)
}

// untrack takes the pod off those with missing grants; others may have waited for that.
func (c *Cache) untrack(pod types.UID, ch *Changes) {
	for node, pods := range c.missingGrants {
		if _, was := pods[pod]; was {
			if delete(pods, pod); len(pods) == 0 {
				delete(c.missingGrants, node)
			}
			ch.free(OnAll)
		}
	}
}

// trackLedger tracks the pods that a new version of a ledger may concern, oldest first: pods
// with missing grants, and pods that only one of the two versions has. Pods that waited for
// them are looked at in that order.
func (c *Cache) trackLedger(before *v1alpha1.SliceLedger, node string, ch *Changes) {
	now := c.Index.Ledger(node)
	concerned := c.missingOn(node)
	for _, differ := range []iter.Seq2[types.UID, string]{grants.Gone(before, now), grants.Gone(now, before)} {
		for uid, owner := range differ {
			if pod := c.pods[podstate.OwnerKey(owner)]; pod != nil && pod.UID == uid {
				concerned[uid] = pod
			} else {
				c.trackStranger(uid)
			}
		}
	}
	for _, pod := range podstate.OldestFirst(concerned) {
		c.track(pod, ch)
	}
}

// Settled reports whether the node has no pods whose missing grants can be restored.
func (c *Cache) Settled(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.missingGrants[node]) == 0 {
		return true
	}
	ledger := c.Index.Ledger(node)
	if ledger == nil {
		return true
	}
	for _, pod := range c.missingOn(node) {
		// Of an idle slice nothing is promised: it is not written back.
		if !podrequest.OnIdle(pod) && missing.Possible(pod, ledger, c.classes) {
			return false
		}
	}
	return true
}

// Missing are the pods of a node whose grants are missing.
func (c *Cache) Missing(node string) map[types.UID]*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.missingOn(node)
}

// NodesMissing are the nodes that have pods whose grants are missing, in order.
func (c *Cache) NodesMissing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.missingGrants))
}

func (c *Cache) missingOn(node string) map[types.UID]*corev1.Pod {
	pods := map[types.UID]*corev1.Pod{}
	for uid, key := range c.missingGrants[node] {
		if pod := c.pods[key]; pod != nil && pod.UID == uid {
			pods[uid] = pod
		}
	}
	return pods
}
