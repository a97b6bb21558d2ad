// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/feasible"
)

// Within is where the pods of a group have to be: on nodes that have the same value of each of
// the labels Keys. Without any they may be anywhere.
type Within struct {
	Keys []string
	// Nodes are those of the members that have theirs already: the others join them.
	Nodes []string
}

// WithinOf is where the members of a gang have to be.
func WithinOf(g *gang.Gang) Within { return Within{g.Topology, slices.Clone(g.Nodes)} }

// MaxWithin bounds how many values of the labels are tried for a gang.
const MaxWithin = 64

// Domain is the nodes with one value of the labels, and how much compute is free on them.
type Domain struct {
	Value string
	Nodes map[string]bool
	rooms []*placement.Node
	free  int64
}

// Domains are those with rooms in them that the pods may go to, the fullest first. Where members
// have nodes, the ones of these nodes as one. Without pods it is all with rooms.
func (w Within) Domains(filters *feasible.Filters, pods []Request, rooms []*placement.Node) []Domain {
	admits := func(string) bool { return true }
	if len(pods) > 0 {
		admits = filters.Admits(podsOf(pods))
	}
	values := map[string][]string{} // of a node, by the keys
	for _, key := range w.Keys {
		for value, names := range filters.Domains(key) {
			for _, name := range names {
				values[name] = append(values[name], value)
			}
		}
	}
	valueOf := func(node string) (string, bool) {
		return strings.Join(values[node], ", "), len(values[node]) == len(w.Keys)
	}
	joined := map[string]bool{}
	for _, node := range w.Nodes {
		if value, has := valueOf(node); has {
			joined[value] = true
		}
	}
	all := map[string]Domain{}
	for _, room := range rooms {
		value, has := valueOf(room.Name)
		if !has || len(w.Nodes) > 0 && !joined[value] || !admits(room.Name) {
			continue
		}
		if len(w.Nodes) > 0 {
			value = strings.Join(slices.Sorted(maps.Keys(joined)), " or ")
		}
		d, known := all[value]
		if !known {
			d = Domain{Value: value, Nodes: map[string]bool{}}
		}
		d.Nodes[room.Name] = true
		d.rooms = append(d.rooms, room)
		d.free += freeCore(room)
		all[value] = d
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Domain) int {
		return cmp.Or(cmp.Compare(a.free, b.free), strings.Compare(a.Value, b.Value))
	})
}

// Text names the labels.
func (w Within) Text() string { return strings.Join(w.Keys, ", ") }

// fitWithin is fit for pods that have to be on nodes with the same labels: the fullest domain
// that takes them. Where none does, it says what is missing in the one with most room.
func (s *Scheduler) fitWithin(ctx context.Context, item queue.Item, order []Request, need int, within Within) ([]binding.Assignment, *GangDiagnosis, error) {
	var rooms []*placement.Node
	for _, n := range s.Cache.Index.Room() {
		if s.Cache.Settled(n.Name) {
			rooms = append(rooms, n)
		}
	}
	all := within.Domains(s.Filters, order, rooms)
	if len(all) == 0 {
		all = within.Domains(s.Filters, nil, rooms) // for the scheduler's words
	}
	if len(all) == 0 {
		return nil, &GangDiagnosis{Pod: order[0].Pod, Why: &Diagnosis{Diagnosis: diagnosis.Diagnosis{Labels: within.Keys, Beside: within.Nodes}}}, nil
	}
	pods := map[types.UID]bool{}
	for _, p := range order {
		pods[p.Pod.UID] = true
	}
	tried := 0
	for _, d := range all {
		if tried == MaxWithin {
			break
		}
		if err := s.rest(); err != nil {
			return nil, nil, err
		}
		if !haveDevices(slices.Clone(d.rooms), order, need) {
			continue
		}
		tried++
		choices, miss, err := s.fitIn(ctx, item, order, need, &domain{pods: pods, nodes: d.Nodes}, DomainOrders)
		if miss == nil || err != nil {
			return choices, nil, err
		}
	}
	most := all[len(all)-1]
	choices, miss, err := s.tryOrder(ctx, item, order, need, &domain{pods: pods, nodes: most.Nodes, explain: true}, nil)
	if miss != nil {
		miss.Domain = most.Value
	}
	return choices, miss, err
}
