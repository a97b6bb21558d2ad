// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// UnderWay is how many pods are placed at the moment, or were deleted before they were bound and
// still hold slices. At rest there are none.
func (c *Cache) UnderWay() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.placing) + len(c.deletedUnbound)
}

// Remembered are the pods that have their slices and wait for their node.
func (c *Cache) Remembered() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.staged))
}
