// SPDX-License-Identifier: Apache-2.0

package cache

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// workload is a Workload of Kueue's as its pods name it.
type workload struct {
	namespace string
	uid       types.UID
}

// ReservedFor are the pods of the namespace that take the reserved room of the Workload, oldest first.
func (c *Cache) ReservedFor(namespace string, uid types.UID) []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return podstate.OldestFirst(c.reservedFor[workload{namespace, uid}])
}

// ReservedForVersion changes when what ReservedFor returns does.
func (c *Cache) ReservedForVersion() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reservedForVersion
}

func (c *Cache) trackReservedFor(pod *corev1.Pod, is bool) {
	of := workload{pod.Namespace, podrequest.ReservedFor(pod)}
	if of.uid == "" {
		return
	}
	c.reservedForVersion++
	if is {
		if c.reservedFor[of] == nil {
			c.reservedFor[of] = map[types.UID]*corev1.Pod{}
		}
		c.reservedFor[of][pod.UID] = pod
	} else if delete(c.reservedFor[of], pod.UID); len(c.reservedFor[of]) == 0 {
		delete(c.reservedFor, of)
	}
}
