// SPDX-License-Identifier: Apache-2.0

// Package index owns the allocator's view of all ledgers. It has the newest known version
// of each, the room on every device, and the ledgers with slices of a pod.
//
// It never talks to the API server and never decides. Its view may be
// behind; a decision made on it is fenced by the ledger's resourceVersion.
package index

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
)

// Index is safe for concurrent use. The zero value is not; use New.
type Index struct {
	mu      sync.RWMutex
	nodes   map[string]*view
	holders map[types.UID][]string
	// changed are the nodes that Changed has not told of yet.
	changed map[string]bool
}

type view struct {
	ledger *v1alpha1.SliceLedger
	// room is what the ledger leaves, or a draft that is made of it.
	room *placement.Node
}

// New is an empty index.
func New() *Index {
	return &Index{nodes: map[string]*view{}, holders: map[types.UID][]string{}, changed: map[string]bool{}}
}

// Put takes in a ledger that a watch showed or a write returned, unless a newer
// version of it is known. A grant just written is counted until the watch shows
// it or something newer. The index keeps the object; nobody may change it
// afterwards. Put reports whether there is room now where there was none.
func (x *Index) Put(ledger *v1alpha1.SliceLedger) (roomy bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.nodes[ledger.Name]
	if old != nil && !newer(ledger, old.ledger) {
		return false
	}
	now := &view{ledger: ledger, room: Room(ledger)}
	var before *placement.Node
	var was *v1alpha1.SliceLedger
	if old != nil {
		before, was = old.room, old.ledger
	}
	x.nodes[ledger.Name] = now
	x.changed[ledger.Name] = true
	for pod := range grants.Gone(was, ledger) {
		x.release(pod, ledger.Name)
	}
	for pod := range grants.Gone(ledger, was) {
		if !slices.Contains(x.holders[pod], ledger.Name) {
			x.holders[pod] = append(x.holders[pod], ledger.Name)
		}
	}
	return roomier(before, now.room)
}

// Delete takes a ledger out, unless a newer one of that name is known.
func (x *Index) Delete(ledger *v1alpha1.SliceLedger) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.nodes[ledger.Name]; old != nil && (old.ledger.UID == ledger.UID || newer(ledger, old.ledger)) {
		for pod := range grants.Gone(old.ledger, nil) {
			x.release(pod, ledger.Name)
		}
		delete(x.nodes, ledger.Name)
		x.changed[ledger.Name] = true
	}
}

// Changed are the nodes whose room may be another since the last call, sorted. Their
// order may decide between nodes that are equally good.
func (x *Index) Changed() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := slices.Sorted(maps.Keys(x.changed))
	clear(x.changed)
	return names
}

// Draft shows the room that next leaves in place of that of known, the ledger that
// it is to be written over. It is false when a newer one is known. Everything else goes on
// showing known. A newer version that is put in ends that, and so does Drop.
func (x *Index) Draft(known, next *v1alpha1.SliceLedger) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	v := x.nodes[known.Name]
	if v == nil || v.ledger != known {
		return false
	}
	v.room = Room(next)
	x.changed[known.Name] = true
	return true
}

// Drop shows again what known leaves, unless a newer version has come: its draft was
// not written. Drop reports whether there is room now where there was none.
func (x *Index) Drop(known *v1alpha1.SliceLedger) (roomy bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	v := x.nodes[known.Name]
	if v == nil || v.ledger != known {
		return false
	}
	before := v.room
	v.room = Room(known)
	x.changed[known.Name] = true
	return roomier(before, v.room)
}

// release notes that a ledger holds nothing of the pod any more.
func (x *Index) release(pod types.UID, ledger string) {
	left := slices.DeleteFunc(x.holders[pod], func(name string) bool { return name == ledger })
	if len(left) == 0 {
		delete(x.holders, pod)
		return
	}
	x.holders[pod] = left
}

// newer orders versions of one ledger. The API server's resource versions are
// ordered across all objects of a type, so this holds for a ledger that was
// deleted and made again too.
func newer(a, b *v1alpha1.SliceLedger) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	// A version that is none comes from no API server: take the later call.
	return err != nil || c > 0
}

// Ledger is the newest known version, nil when there is none. Copy before change.
func (x *Index) Ledger(node string) *v1alpha1.SliceLedger {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if v := x.nodes[node]; v != nil {
		return v.ledger
	}
	return nil
}

// Behind is the ledger that shows the room of a node that Room returned, nil when a
// newer version has come since.
func (x *Index) Behind(room *placement.Node) *v1alpha1.SliceLedger {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if v := x.nodes[room.Name]; v != nil && v.room == room {
		return v.ledger
	}
	return nil
}

// Names are all ledgers, sorted.
func (x *Index) Names() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Sorted(maps.Keys(x.nodes))
}

// On is the room on one node, nil when it may not take slices; known is false when
// there is no ledger.
func (x *Index) On(node string) (room *placement.Node, known bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if v := x.nodes[node]; v != nil {
		return v.room, true
	}
	return nil, false
}

// Room is every node that may take slices, sorted by name. Nodes are shared:
// read only.
func (x *Index) Room() []*placement.Node {
	x.mu.RLock()
	defer x.mu.RUnlock()
	nodes := make([]*placement.Node, 0, len(x.nodes))
	for _, v := range x.nodes {
		if v.room != nil {
			nodes = append(nodes, v.room)
		}
	}
	slices.SortFunc(nodes, func(a, b *placement.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// Withheld says what is not granted of all nodes, and why; empty when there is nothing.
func (x *Index) Withheld() string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Withheld(x.ledgers)
}

// WouldDo is the function of that name for all nodes.
func (x *Index) WouldDo(demand *placement.Demand) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return WouldDo(demand, x.ledgers)
}

// ledgers yields those of all nodes. The caller holds mu.
func (x *Index) ledgers(yield func(*v1alpha1.SliceLedger) bool) {
	for _, v := range x.nodes {
		if !yield(v.ledger) {
			return
		}
	}
}

// Empty is what nodes that may take slices would have if nothing were granted on
// them, sorted by name.
func (x *Index) Empty() []*placement.Node {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var nodes []*placement.Node
	for _, v := range x.nodes {
		bare := &v1alpha1.SliceLedger{ObjectMeta: v.ledger.ObjectMeta, Status: v.ledger.Status}
		bare.Spec.Cordons = v.ledger.Spec.Cordons
		bare.Status.Slices = nil
		if room := Room(bare); room != nil {
			nodes = append(nodes, room)
		}
	}
	slices.SortFunc(nodes, func(a, b *placement.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// Holders are the nodes whose ledgers hold slices of the pod, sorted.
func (x *Index) Holders(pod types.UID) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Sorted(slices.Values(x.holders[pod]))
}
