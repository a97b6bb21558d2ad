// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/ranking"
)

// trial is a decision under way: what the pods of the set that were decided on
// leave for the others. It lasts for one call of decide, or for one try of fit.
type trial struct {
	*Allocator
	set     []ask
	choices []choice
	// in, if set, is where those of the set that go by each other are to be, and leads are
	// decided on before those that they go by.
	in    *domain
	leads map[types.UID]bool
	// counted is how many of the choices the filters and the ranking know of.
	counted int
	// touched are the nodes of the choices, names them in the order of the first choice.
	touched map[string]*touched
	names   []string
	// reserved ends what the filters take for taken by the choices, and by pods that are on
	// their way and not waited for, once others is true.
	reserved []func()
	others   bool
}

// touched is a node as the index shows it, and what the choices leave of it.
type touched struct{ shown, left *placement.Node }

// next chooses for one more pod of the set, which is beside those before it. Without
// a choice that the scheduler accepts it says why.
func (t *trial) next(ctx context.Context, pod ask) (*shortage, error) {
	if err := t.reserveForOthers(ctx); err != nil {
		return nil, err
	}
	if err := t.countAll(); err != nil {
		return nil, err
	}
	if err := t.survey(); err != nil {
		return nil, err
	}
	for _, name := range t.names {
		t.showRoom(name, t.touched[name].left)
	}
	// Of pods that ask for the same, one is enough to see that nobody has the devices.
	if lacks := t.scarce.find(podrequest.EquivalenceClass(pod.pod)); lacks != nil && len(t.set) == 1 {
		return &shortage{devices: *lacks, withheld: t.index.Withheld()}, nil
	}
	j, wants := judge{Allocator: t.Allocator, pod: pod.pod, in: t.in}, pod.wants()
	if t.leads[pod.pod.UID] {
		j.pod = early(pod.pod, t.set)
	}
	defer func() { nodesJudged.Observe(float64(len(j.looked))) }()
	for plan, room := range t.ranking.Plans(wants) {
		if ok, err := j.accepts(ctx, plan.Node); err != nil {
			return nil, err
		} else if ok {
			return nil, t.take(ctx, pod, plan, room, &j)
		}
	}
	if found, later, err := t.preempt(ctx, pod, wants, &j); found || err != nil {
		return nil, err
	} else if later {
		return &shortage{known: true}, nil
	}
	if t.in != nil || t.stillWaits(t.set, j.refused > 0 || !t.ranking.Short(wants)) {
		return &shortage{known: true}, nil
	}
	return t.explain(ctx, pod, wants, &j)
}

// countAll has the filters know of all choices.
func (t *trial) countAll() error { return t.count(len(t.choices)) }

// count has them know of the first n.
func (t *trial) count(n int) error {
	for ; t.counted < n; t.counted++ {
		last := &t.choices[t.counted]
		if _, err := t.Filters.Count(last.pod, last.plan.Node); err != nil {
			return err
		}
	}
	return nil
}

// maxWords is how many of the nodes that lack CPU or memory are asked for the scheduler's
// words: on a large cluster that is full it would be thousands for each pod that waits.
const maxWords = 100

// explain finds out why the pod fits on no node. It asks the filters about nodes that lack
// CPU or memory too, for their words.
func (t *trial) explain(ctx context.Context, pod ask, wants *ranking.Ask, j *judge) (*shortage, error) {
	since := t.scarce.now()
	var without []*placement.Node
	words, unasked := 0, 0
	all := t.index.Room()
	known := len(all)
	rooms := slices.DeleteFunc(all, func(n *placement.Node) bool { return t.unsettled(n.Name) })
	for i, n := range rooms {
		if on := t.touched[n.Name]; on != nil {
			rooms[i] = on.left
		}
		if !placement.Fits(pod.demand, rooms[i]) {
			without = append(without, rooms[i])
			continue
		}
		if !t.ranking.Takes(n.Name, wants) {
			if words == maxWords {
				unasked++
				continue
			}
			words++
		}
		if ok, err := j.accepts(ctx, n.Name); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		// There was no room a moment ago.
		if plan, fits := placement.Fit(pod.demand, rooms[i]); fits {
			return nil, t.take(ctx, pod, plan, n, j)
		}
	}
	why := &shortage{refused: j.refused + unasked, unasked: unasked, reasons: j.reasons, devices: placement.Explain(pod.demand, without), withheld: t.index.Withheld()}
	if len(t.set) == 1 && why.refused == 0 && len(rooms) == known {
		t.scarce.note(podrequest.EquivalenceClass(pod.pod), &why.devices, since)
	}
	return why, nil
}

// take makes the plan on a node the pod's, which leaves less of the node, or the one there
// with all on one device where that is worth as much. It is the node that was accepted last.
func (t *trial) take(ctx context.Context, pod ask, plan placement.Plan, room *placement.Node, j *judge) error {
	if len(t.set) > 1 && t.Filters.Undecided(pod.pod) != nil {
		if err := t.reserveFor(ctx, j.cycle, plan.Node); err != nil {
			return err
		}
	}
	if t.touched == nil {
		t.touched = map[string]*touched{}
	}
	on := t.touched[plan.Node]
	if on == nil {
		on = &touched{room, room}
		t.touched[plan.Node] = on
		t.names = append(t.names, plan.Node)
	}
	if len(pod.demand.Containers) > 1 {
		plan = t.ranking.Together(pod.wants(), plan, on.left)
	}
	on.left = on.left.Without(&plan)
	t.choices = append(t.choices, choice{ask: pod, plan: plan})
	return nil
}

func (t *trial) reserveFor(ctx context.Context, cycle *feasible.Cycle, node string) error {
	end, err := cycle.Reserve(ctx, node)
	if err == nil {
		t.reserved = append(t.reserved, end)
	}
	return err
}

// decided are the choices with the ledgers that they were made on.
func (t *trial) decided() ([]choice, error) {
	for i := range t.choices {
		c := &t.choices[i]
		if c.ledger = t.index.Behind(t.touched[c.plan.Node].shown); c.ledger == nil {
			return nil, errAgain
		}
	}
	return t.choices, nil
}

// end has the filters count the pods of the set where they are in truth, and the
// ranking see their nodes as they are. It wakes nobody: what was tried is no change, and a
// set that waits would be looked at again and again for having been looked at.
func (t *trial) end() {
	for _, end := range slices.Backward(t.reserved) {
		end()
	}
	t.mu.Lock()
	for _, c := range t.choices[:t.counted] {
		if known := t.pods[podstate.KeyOf(c.pod)]; known != nil && known.UID == c.pod.UID {
			t.tellFilters(known, t.seat(known))
		} else {
			t.tellFilters(c.pod, "")
		}
	}
	t.mu.Unlock()
	for _, c := range t.choices[:t.counted] {
		t.show(c.plan.Node)
	}
	t.counted, t.reserved, t.others = 0, nil, false
}

// judge asks the scheduler's filters about nodes for one pod, about each once.
type judge struct {
	*Allocator
	pod    *corev1.Pod
	in     *domain
	cycle  *feasible.Cycle
	looked map[string]bool
	// refused is how many nodes the scheduler would refuse, for reasons.
	refused int
	reasons reasons
}

func (j *judge) accepts(ctx context.Context, node string) (bool, error) {
	if j.looked[node] || j.in.excludes(j.pod, node) || j.unsettled(node) {
		return false, nil
	}
	if err := j.begin(ctx); err != nil {
		return false, err
	}
	j.looked[node] = true
	against, err := j.cycle.Refusals(ctx, node)
	if err != nil || len(against) == 0 {
		return err == nil, err
	}
	j.refused++
	j.reasons.add(against)
	return false, nil
}

// begin begins the cycle, once.
func (j *judge) begin(ctx context.Context) error {
	if j.cycle != nil {
		return nil
	}
	cycle, err := j.Filters.Start(ctx, j.pod)
	if err == nil {
		j.cycle, j.looked, j.reasons = cycle, map[string]bool{}, reasons{}
	}
	return err
}
