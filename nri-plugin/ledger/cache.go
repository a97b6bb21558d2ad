// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"sync/atomic"

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

// Known tells whether the watch has delivered the ledger, or its end.
func (c *Cache) Known() bool { return c.index.Load() != nil }

// Index is the latest one, empty before the first.
func (c *Cache) Index() *Index {
	if x := c.index.Load(); x != nil {
		return x
	}
	return NewIndex(nil)
}

// Fetch reads the ledger from the API server: for a container that the watch has
// not told of yet. ctx must bound it.
func (c *Cache) Fetch(ctx context.Context) (*Index, error) {
	l := &v1alpha1.SliceLedger{}
	if err := c.Live.Get(ctx, client.ObjectKey{Name: c.Node}, l); err != nil {
		return nil, fmt.Errorf("reading SliceLedger %s: %w", c.Node, err)
	}
	return NewIndex(l), nil
}
