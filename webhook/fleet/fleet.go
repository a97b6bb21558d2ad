// SPDX-License-Identifier: Apache-2.0

// Package fleet owns the webhook's idea of the cluster's GPU nodes, from the
// ledgers. It has their sizes, how many GPUs are near each other, their
// models and UUIDs, and the room on each. It is enough to warn about a share that fits
// nowhere, and to answer a dry run whether there is room now.
//
// It never refuses anything: another node may be on its way.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
)

// Size is the most that one node and one device have. The zero value is a fleet
// of which nothing is known.
type Size struct {
	GPUs api.DeviceCount
	Mem  api.MiB
	// NVLink, PCIe, NUMA and RDMA are the most GPUs of a node that are near each other, at each
	// level of topology.
	NVLink, PCIe, NUMA, RDMA api.DeviceCount
}

// most is the greater of both, of everything.
func (s Size) most(t Size) Size {
	return Size{max(s.GPUs, t.GPUs), max(s.Mem, t.Mem), max(s.NVLink, t.NVLink), max(s.PCIe, t.PCIe), max(s.NUMA, t.NUMA), max(s.RDMA, t.RDMA)}
}

// TopologyWarning says why so many GPUs are near each other nowhere; empty where they may be.
func (s Size) TopologyWarning(level api.TopologyLevel, gpus api.DeviceCount) string {
	most := map[api.TopologyLevel]api.DeviceCount{api.TopologyNVLink: s.NVLink, api.TopologyPCIe: s.PCIe, api.TopologyNUMA: s.NUMA, api.TopologyRDMA: s.RDMA}[level]
	switch {
	case s.GPUs == 0 || most >= gpus:
		return ""
	case most == 0:
		return fmt.Sprintf("needs %s, and no node's driver reports any: the pod waits until one does", level.Text())
	}
	return fmt.Sprintf("needs %d %s, and no node has more than %d: the pod waits until one has", gpus, level.Text(), most)
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

// node is what is kept of one. It stands in the cache in place of the node's ledger, whose slices
// are most of its bytes.
type node struct {
	metav1.PartialObjectMetadata
	size          Size
	models, uuids []string
	// room is nil while the node takes no slices. Then, and where a GPU is cordoned, withheld is the
	// ledger.
	room     *placement.Node
	withheld *api.SliceLedger
}

// Fleet follows the ledgers. Its zero value knows nothing.
type Fleet struct {
	mu    sync.Mutex
	nodes map[string]*node
	// models and uuids count the GPUs of all nodes, UUIDs in lower case.
	models, uuids map[string]int
	// size is the maximum over nodes while fresh is set.
	size  Size
	fresh bool

	// Clock bounds how long a look for room takes; nil is the real one.
	Clock clock.PassiveClock
	// looking is held by the one look for room that is under way.
	looking sync.Mutex
	// synced is set once Follow is under way.
	synced atomic.Pointer[cache.InformerSynced]
}

// Size is the most that any node has now.
func (f *Fleet) Size() Size {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fresh {
		f.size = Size{}
		for _, n := range f.nodes {
			f.size = f.size.most(n.size)
		}
		f.fresh = true
	}
	return f.size
}

// Models says which models of a list no GPU has; empty where each has one, and where nothing
// is known.
func (f *Fleet) Models(list api.AllowList) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !list.Any() || len(f.models) == 0 {
		return ""
	}
	text := missing(list, func(item string) bool {
		one, err := api.ParseAllowList(item)
		return err != nil || f.anyModel(one)
	})
	waits := ""
	if !f.anyModel(list) {
		text, waits = cmp.Or(text, "no GPU is allowed"), ": the pod waits until there is one that it may use"
	}
	if text == "" {
		return ""
	}
	return text + ", " + api.ModelsText(f.models) + waits
}

// Class says that no GPU is of the models of a class; empty where one is, and where nothing is
// known.
func (f *Fleet) Class(class *classes.Class) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.models) == 0 || f.anyModel(class.Models) {
		return ""
	}
	return fmt.Sprintf("no GPU is of the models of GPUClass %s (%s), %s: the pod waits until there is one", class.Name, class.Models, api.ModelsText(f.models))
}

func (f *Fleet) anyModel(list api.AllowList) bool {
	for model := range f.models {
		if list.Allows(model) {
			return true
		}
	}
	return false
}

// UUIDs says which UUIDs of a list no GPU has. Items that are only a part of one are not
// looked up.
func (f *Fleet) UUIDs(list api.AllowList) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !list.Any() || len(f.uuids) == 0 {
		return ""
	}
	known := 0
	text := missing(list, func(item string) bool {
		has := len(item) != uuidLength || f.uuids[strings.ToLower(item)] > 0
		if has {
			known++
		}
		return has
	})
	if text != "" && known == 0 {
		text += ": the pod waits until there is one that it may use"
	}
	return text
}

// uuidLength is that of NVML's, "GPU-" and a UUID.
const uuidLength = len("GPU-") + 36

// missing names the items of a list that has not has.
func missing(list api.AllowList, has func(item string) bool) string {
	lacks := slices.DeleteFunc(list.Only(), has)
	if len(lacks) == 0 {
		return ""
	}
	return "no GPU is " + api.NamesText(lacks, maxMissing)
}

// maxMissing bounds the items that a warning names.
const maxMissing = 8

// Follow keeps the fleet current from the cache's ledgers.
func (f *Fleet) Follow(ctx context.Context, from ctrlcache.Cache) error {
	informer, err := from.GetInformer(ctx, &api.SliceLedger{})
	if err != nil {
		return fmt.Errorf("following the ledgers: %w", err)
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { f.see(obj) },
		UpdateFunc: func(_, obj any) { f.see(obj) },
		DeleteFunc: f.forget,
	})
	if err != nil {
		return err
	}
	synced := cache.InformerSynced(handler.HasSynced)
	f.synced.Store(&synced)
	return nil
}

func (f *Fleet) see(obj any) {
	if now, ok := obj.(*node); ok {
		f.set(now.Name, now)
	}
}

func (f *Fleet) forget(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if last, ok := obj.(*node); ok {
		f.set(last.Name, nil)
	}
}

// set takes in a node; nil takes it out.
func (f *Fleet) set(name string, now *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes == nil {
		f.nodes, f.models, f.uuids = map[string]*node{}, map[string]int{}, map[string]int{}
	}
	is, was := cmp.Or(now, &node{}), cmp.Or(f.nodes[name], &node{})
	f.fresh = f.fresh && was.size == is.size
	count(f.models, was.models, is.models)
	count(f.uuids, was.uuids, is.uuids)
	f.nodes[name] = now
	if now == nil {
		delete(f.nodes, name)
	}
}

// count takes the names that were out of the counts, and those that are now in.
func count(counts map[string]int, was, now []string) {
	for _, name := range now {
		counts[name]++
	}
	for _, name := range was {
		if counts[name]--; counts[name] == 0 {
			delete(counts, name)
		}
	}
}

// Slim has the cache keep of a ledger what the fleet reads.
func Slim(obj any) (any, error) {
	ledger, ok := obj.(*api.SliceLedger)
	if !ok {
		return obj, nil
	}
	now := &node{room: index.Room(ledger), size: Size{GPUs: api.DeviceCount(len(ledger.Status.Devices))}}
	if now.room == nil || len(ledger.Spec.Cordons) > 0 {
		ledger.ManagedFields = nil
		now.withheld = ledger
	}
	now.Name, now.UID, now.ResourceVersion = ledger.Name, ledger.UID, ledger.ResourceVersion
	for i := range ledger.Status.Devices {
		d := &ledger.Status.Devices[i]
		now.size.Mem = max(now.size.Mem, d.Mem)
		now.models, now.uuids = append(now.models, d.Model), append(now.uuids, strings.ToLower(d.UUID))
	}
	near := ledger.Status.Near()
	largest := func(of func(api.Near) uint32) (most api.DeviceCount) {
		for set := range 32 {
			n := api.DeviceCount(0)
			for _, device := range near {
				n += api.DeviceCount(of(device) >> set & 1)
			}
			most = max(most, n)
		}
		return most
	}
	now.size.NVLink = largest(func(n api.Near) uint32 { return n.NVLink })
	now.size.PCIe = largest(func(n api.Near) uint32 { return n.PCIe })
	now.size.NUMA = largest(func(n api.Near) uint32 { return n.NUMA })
	now.size.RDMA = largest(func(n api.Near) uint32 { return n.RDMA })
	return now, nil
}
