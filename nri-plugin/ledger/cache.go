// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// Cache holds the index of the latest ledger that the watch has delivered.
type Cache struct {
	// Node is the node's name, which is the ledger's as well.
	Node string
	// Live reads from the API server, past every cache.
	Live client.Reader

	index atomic.Pointer[Index]
	// least is the version in which the agent last said something else of what is well or
	// misaligned; nil while that is being written, or not known.
	least atomic.Pointer[string]
}

// doubt has the watch be behind until the status was written.
func (c *Cache) doubt() { c.least.Store(nil) }

// settle ends the doubt: the status was written in that version, or was so already.
func (c *Cache) settle(version string) { c.least.CompareAndSwap(nil, &version) }

// Behind reports whether the watch may not have delivered yet the state of slices on
// a device that was unhealthy, or of a misaligned pod. The allocator moves them until the
// ledger says that it is not.
func (c *Cache) Behind() bool {
	least := c.least.Load()
	if least == nil {
		return true
	}
	older, err := resourceversion.CompareResourceVersion(c.Index().version, *least)
	return err != nil || older < 0
}

// Set takes a ledger that the watch delivered, nil when it has been deleted, and
// returns the index of before and of now.
func (c *Cache) Set(l *v1alpha1.SliceLedger) (before, now *Index) {
	now = NewIndex(l)
	before = c.index.Swap(now)
	if before == nil {
		before = NewIndex(nil)
	}
	return before, now
}

// Begin takes the ledger as the agent finds it, unless the watch has delivered one
// already: that one is as new at least.
func (c *Cache) Begin(l *v1alpha1.SliceLedger) { c.index.CompareAndSwap(nil, NewIndex(l)) }

// Known reports whether the watch has delivered the ledger, or its end.
func (c *Cache) Known() bool { return c.index.Load() != nil }

// Index is the latest one, empty before the first.
func (c *Cache) Index() *Index {
	if x := c.index.Load(); x != nil {
		return x
	}
	return NewIndex(nil)
}

// Fetch reads the ledger from the API server: for a container that the watch has
// not delivered yet. The ctx must bound it.
func (c *Cache) Fetch(ctx context.Context) (*Index, error) {
	l := &v1alpha1.SliceLedger{}
	if err := c.Live.Get(ctx, client.ObjectKey{Name: c.Node}, l); err != nil {
		return nil, fmt.Errorf("reading SliceLedger %s: %w", c.Node, err)
	}
	return NewIndex(l), nil
}
