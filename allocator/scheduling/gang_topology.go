// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/podrequest"
)

// Members of a gang that go by each other, by their affinity, follow the first of them to
// its node, zone or whatever it is, which is chosen as if it were alone. Where there is no
// room for all of them beside it, the others that have it are tried one by one.

// MaxDomains bounds how many are tried, and DomainOrders how often with other orders in
// one of them. Each try costs a decision for every member.
const (
	MaxDomains   = 8
	DomainOrders = 2
)

// domain is nodes of one value of a label, and the pods that are to be there together.
type domain struct {
	pods  map[types.UID]bool
	nodes map[string]bool
	// explain has it said what is missing there: nowhere else is left to try.
	explain bool
}

// excludes reports whether the pod is not to be on the node. Nil excludes nothing.
func (d *domain) excludes(pod *corev1.Pod, node string) bool {
	return d != nil && d.pods[pod.UID] && !d.nodes[node]
}

// domains are where the members that go by each other have the devices, as many of them
// as there must be: the wider ones first, and of those alike the fuller, so that what is
// free stays together.
func (s *Scheduler) domains(order []Request, need int) (found []*domain) {
	together, keys := nearEachOther(order)
	if len(together) == 0 {
		return nil
	}
	members := slices.DeleteFunc(slices.Clone(order), func(p Request) bool { return !together[p.Pod.UID] })
	// Those that go by no other may be enough without them; where none of them has its
	// devices there is still nothing to try.
	least := max(1, need-(len(order)-len(members)))
	rooms := map[string]*placement.Node{}
	for _, n := range s.Cache.Index.Room() {
		if s.Cache.Settled(n.Name) {
			rooms[n.Name] = n
		}
	}
	byKey := map[string]map[string][]string{}
	for key := range keys {
		byKey[key] = s.Filters.Domains(key)
	}
	widest := func(p, q string) int {
		return cmp.Or(cmp.Compare(len(byKey[p]), len(byKey[q])), strings.Compare(p, q))
	}
	for _, key := range slices.SortedFunc(maps.Keys(byKey), widest) {
		free := map[string]int64{}
		for value, names := range byKey[key] {
			for _, name := range names {
				free[value] += freeCore(rooms[name])
			}
		}
		fuller := func(p, q string) int { return cmp.Or(cmp.Compare(free[p], free[q]), strings.Compare(p, q)) }
		for _, value := range slices.SortedFunc(maps.Keys(free), fuller) {
			d := &domain{pods: together, nodes: map[string]bool{}}
			var nodes []*placement.Node
			slices.Sort(byKey[key][value])
			for _, name := range byKey[key][value] {
				d.nodes[name] = true
				if rooms[name] != nil {
					nodes = append(nodes, rooms[name])
				}
			}
			if !haveDevices(nodes, members, least) {
				continue
			}
			if found = append(found, d); len(found) == MaxDomains {
				return found
			}
		}
	}
	return found
}

// nearEachOther are those that go by each other, and the labels by whose values they do.
func nearEachOther(order []Request) (together map[types.UID]bool, keys map[string]bool) {
	k := kindsOf(order)
	n := make([]int, len(k.example)) // of each kind
	for _, kind := range k.of {
		n[kind]++
	}
	near := make([]bool, len(k.example))
	together, keys = map[types.UID]bool{}, map[string]bool{}
	for p, terms := range k.terms {
		for q := range k.example {
			if p == q && n[p] == 1 {
				continue // it goes by itself alone
			}
			for _, key := range terms.Near(k.example[q]) {
				near[p], near[q], keys[key] = true, true, true
			}
		}
	}
	for i, p := range order {
		if near[k.of[i]] {
			together[p.Pod.UID] = true
		}
	}
	return together, keys
}

// freeCore is how much compute is free on all devices of a node, nil for none.
func freeCore(n *placement.Node) (sum int64) {
	if n != nil {
		for i := range n.Devices {
			sum += int64(n.Devices[i].FreeCore)
		}
	}
	return sum
}

// haveDevices reports whether so many of the pods have their devices on the nodes, one
// beside the other, each on the first that has them. It changes the list of nodes.
func haveDevices(nodes []*placement.Node, pods []Request, least int) bool {
	kind, from, without := "", 0, 0
	for _, p := range pods {
		// Where there was none for the one before, there is none for one like it.
		if k := podrequest.EquivalenceClass(p.Pod); k != kind {
			kind, from = k, 0
		}
		i := firstFit(nodes[from:], p.Demand)
		if from += i; from == len(nodes) {
			if without++; len(pods)-without < least {
				return false
			}
		}
	}
	return true
}

// firstFit takes the demand out of the first node that has it, and is how many come
// before that one.
func firstFit(nodes []*placement.Node, demand *placement.Demand) int {
	for i, n := range nodes {
		if plan, fits := placement.Fit(demand, n); fits {
			nodes[i] = n.Without(&plan)
			return i
		}
	}
	return len(nodes)
}

// early is the pod as it is judged before those of its set that it goes by have their
// nodes. Whether it is near enough to them is asked then. Where it can go by none of
// them, its affinity is for pods outside, which are where they are.
func early(pod *corev1.Pod, set []Request) *corev1.Pod {
	of, terms := pod.Spec.Affinity, feasible.PodTermsOf(pod)
	if !slices.ContainsFunc(set, func(p Request) bool { return p.Pod.UID != pod.UID && terms.Satisfies(p.Pod) }) {
		return pod
	}
	free, affinity := *pod, *of // the filters change nothing of what they share
	affinity.PodAffinity, free.Spec.Affinity = nil, &affinity
	return &free
}

// judgeAgain is the first of the set that the scheduler would not take beside those before
// it in turn, now that all have their nodes, with its reasons; nil when it takes each. In a circle
// that is any turn, and each is judged beside all others too: the scheduler's turn may be another.
func (t *cycle) judgeAgain(ctx context.Context, turn []Request, circle bool) (*GangDiagnosis, error) {
	if err := t.countAll(); err != nil {
		return nil, err
	}
	at := map[types.UID]string{}
	for _, c := range t.choices {
		if err := t.assumed.Recount(c.Pod, ""); err != nil {
			return nil, err
		}
		at[c.Pod.UID] = c.Plan.Node
	}
	var refused *GangDiagnosis
	// judge counts the pod on its node where it is not refused there.
	judge := func(p Request) (bool, error) {
		if s := t.searching; s != nil && t.Clock.Since(s.until) > RoundTime<<MaxRestarts {
			// This has no place to pause: the search begins again, with more time.
			return false, errStale
		}
		cycle, err := t.Filters.Start(ctx, p.Pod)
		if err != nil {
			return false, err
		}
		against, err := cycle.Refusals(ctx, at[p.Pod.UID])
		if err != nil {
			return false, err
		}
		if len(against) > 0 {
			why := &Diagnosis{Diagnosis: diagnosis.Diagnosis{Refused: 1, Reasons: diagnosis.Reasons{}}}
			why.Reasons.Add(against)
			refused = &GangDiagnosis{Pod: p.Pod, Why: why, Fits: len(t.choices) - 1}
			return false, nil
		}
		return true, t.assumed.Recount(p.Pod, at[p.Pod.UID])
	}
	placed := slices.DeleteFunc(slices.Clone(turn), func(p Request) bool { return at[p.Pod.UID] == "" })
	for left := placed; len(left) > 0; {
		var rest []Request
		for _, p := range left {
			switch taken, err := judge(p); {
			case err != nil:
				return nil, err
			case !taken:
				rest = append(rest, p)
			}
			if len(rest) > 0 && !circle {
				return refused, nil
			}
		}
		if len(rest) == len(left) {
			return refused, nil
		}
		left = rest
	}
	if !circle {
		return nil, nil
	}
	for _, p := range placed {
		if err := t.assumed.Recount(p.Pod, ""); err != nil {
			return nil, err
		}
		if taken, err := judge(p); !taken || err != nil {
			return refused, err
		}
	}
	return nil, nil
}
