// SPDX-License-Identifier: Apache-2.0

// Package fleet owns the webhook's idea of how large the cluster's GPU nodes
// are, from the ledgers: enough to warn about a share that fits nowhere.
//
// It never refuses anything: a larger node may be on its way.
package fleet

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Size is the most that one node and one device have. The zero value is a fleet
// of which nothing is known.
type Size struct {
	GPUs api.DeviceCount
	Mem  api.MiB
}

// Warning says why a share fits nowhere; empty where it may fit.
func (s Size) Warning(share api.Share) string {
	switch {
	case s.GPUs > 0 && share.GPUs > s.GPUs:
		return fmt.Sprintf("needs %d GPUs on one node, and no node has more than %d: the pod waits until one has", share.GPUs, s.GPUs)
	case s.Mem > 0 && share.MemMiB > s.Mem:
		return fmt.Sprintf("needs %d MiB on one GPU, and no GPU has more than %d: the pod waits until one has", share.MemMiB, s.Mem)
	}
	return ""
}

// Fleet follows the ledgers. Its zero value knows nothing.
type Fleet struct {
	mu    sync.Mutex
	nodes map[string]Size
	// size is the maximum over nodes while fresh is set.
	size  Size
	fresh bool
}

// Size is the most that any node has now.
func (f *Fleet) Size() Size {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fresh {
		f.size = Size{}
		for _, n := range f.nodes {
			f.size.GPUs, f.size.Mem = max(f.size.GPUs, n.GPUs), max(f.size.Mem, n.Mem)
		}
		f.fresh = true
	}
	return f.size
}

// Follow keeps the fleet current from the cache's ledgers.
func (f *Fleet) Follow(ctx context.Context, from ctrlcache.Cache) error {
	informer, err := from.GetInformer(ctx, &api.SliceLedger{})
	if err != nil {
		return fmt.Errorf("following the ledgers: %w", err)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { f.see(obj) },
		UpdateFunc: func(_, obj any) { f.see(obj) },
		DeleteFunc: f.forget,
	})
	return err
}

func (f *Fleet) see(obj any) {
	ledger, ok := obj.(*api.SliceLedger)
	if !ok {
		return
	}
	size := Size{GPUs: api.DeviceCount(len(ledger.Status.Devices))}
	for i := range ledger.Status.Devices {
		size.Mem = max(size.Mem, ledger.Status.Devices[i].Mem)
	}
	f.set(ledger.Name, size)
}

func (f *Fleet) forget(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if ledger, ok := obj.(*api.SliceLedger); ok {
		f.set(ledger.Name, Size{})
	}
}

func (f *Fleet) set(node string, size Size) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[node] == size {
		return
	}
	if f.nodes == nil {
		f.nodes = map[string]Size{}
	}
	f.nodes[node] = size
	if size == (Size{}) {
		delete(f.nodes, node)
	}
	f.fresh = false
}

// Slim drops what the fleet does not read before the cache keeps a ledger: a
// ledger's slices are most of its bytes.
func Slim(obj any) (any, error) {
	if ledger, ok := obj.(*api.SliceLedger); ok {
		ledger.ManagedFields = nil
		ledger.Spec = api.SliceLedgerSpec{}
		ledger.Status = api.SliceLedgerStatus{Devices: ledger.Status.Devices}
	}
	return obj, nil
}
