// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Remembered are the pods of which the cache keeps more than what the API server has. They are
// placed at the moment or wait for their node, or were deleted before they were bound. At rest
// there are those alone that wait for their node.
func (c *Cache) Remembered() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Keys(c.placing)), slices.Collect(maps.Keys(c.deletedUnbound)), slices.Collect(maps.Keys(c.staged)))
}
