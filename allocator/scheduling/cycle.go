// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/ranking"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// cycle is a decision under way: what the pods of the set that were decided on
// leave for the others. It lasts for one call of Schedule, or for one try of fit.
type cycle struct {
	*Scheduler
	asker reservation.Asker
	// assumed are the choices that the filters know of, counted is how many these are.
	assumed *cache.Assumption
	set     []Request
	choices []binding.Assignment
	// in, if set, is where the pods of the set with affinity to each other have to be. leads
	// are decided on before the pods that their affinity selects.
	in      *domain
	leads   map[types.UID]bool
	counted int
	// touched are the nodes of the choices, names them in the order of the first choice.
	touched map[string]*touched
	names   []string
	// reserved ends what the filters take for taken by the choices, and by pods that are on
	// their way and not waited for, once others is true.
	reserved []func()
	others   bool
}

// touched is a node as the index shows it, and what the choices leave of it as it is seen.
type touched struct{ shown, left *placement.Node }

// next chooses for one more pod of the set, which is beside those before it. Without
// a choice that the scheduler accepts it says why.
func (t *cycle) next(ctx context.Context, pod Request) (*Diagnosis, error) {
	if err := t.reserveForOthers(ctx); err != nil {
		return nil, err
	}
	if err := t.countAll(); err != nil {
		return nil, err
	}
	if err := t.survey(); err != nil {
		return nil, err
	}
	t.look(t.asker)
	for _, name := range t.names {
		t.showRoom(name, t.touched[name].left)
	}
	// Of pods that ask for the same, one is enough to see that nobody has the devices.
	if lacks := t.Queue.Classes.Find(t.seen.key + podrequest.EquivalenceClass(pod.Pod)); lacks != nil && len(t.set) == 1 {
		return &Diagnosis{Diagnosis: diagnosis.Diagnosis{Devices: *lacks, Withheld: t.Cache.Index.Withheld(), WouldDo: t.Cache.Index.WouldDo(pod.Demand)}}, nil
	}
	f, wants := nodeFilter{Scheduler: t.Scheduler, pod: pod.Pod, in: t.in}, pod.wants()
	if t.leads[pod.Pod.UID] {
		f.pod = early(pod.Pod, t.set)
	}
	defer func() { nodesJudged.Observe(float64(len(f.looked))) }()
	for plan, room := range t.ranking.Plans(wants) {
		if ok, err := f.accepts(ctx, plan.Node); err != nil {
			return nil, err
		} else if ok {
			return nil, t.take(ctx, pod, plan, room, &f)
		}
	}
	if f.avoided {
		return &Diagnosis{Known: true, Avoided: true}, nil
	}
	if found, later, err := t.postFilter(ctx, pod, wants, &f); found || err != nil {
		return nil, err
	} else if later {
		return &Diagnosis{Known: true}, nil
	}
	if t.in != nil && !t.in.explain || t.Queue.StillUnschedulable(podsOf(t.set), f.refused > 0 || !t.ranking.Short(wants)) {
		return &Diagnosis{Known: true}, nil
	}
	return t.explain(ctx, pod, wants, &f)
}

// countAll has the filters know of all choices.
func (t *cycle) countAll() error { return t.count(len(t.choices)) }

// count has them know of the first n.
func (t *cycle) count(n int) error {
	for ; t.counted < n; t.counted++ {
		last := &t.choices[t.counted]
		if err := t.assumed.Count(last.Pod, last.Plan.Node); err != nil {
			return err
		}
	}
	return nil
}

// MaxWords is how many of the nodes that lack CPU or memory are asked for the scheduler's
// words. On a large cluster that is full it would be thousands for each pod that waits.
const MaxWords = 100

// explain finds out why the pod fits on no node. It asks the filters about nodes that lack
// CPU or memory too, for their words.
func (t *cycle) explain(ctx context.Context, pod Request, wants *ranking.Ask, f *nodeFilter) (*Diagnosis, error) {
	since := t.Queue.Classes.Time()
	var without []*placement.Node
	words, unasked := 0, 0
	all := t.rooms()
	known := len(all)
	rooms := slices.DeleteFunc(all, func(n *placement.Node) bool { return !t.Cache.Settled(n.Name) || t.in.excludes(pod.Pod, n.Name) })
	for i, n := range rooms {
		if on := t.touched[n.Name]; on != nil {
			rooms[i] = on.left
		}
		if !placement.Fits(pod.Demand, rooms[i]) {
			without = append(without, rooms[i])
			continue
		}
		if !t.ranking.Takes(n.Name, wants) {
			if words == MaxWords {
				unasked++
				continue
			}
			words++
		}
		if ok, err := f.accepts(ctx, n.Name); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		// There was no room a moment ago.
		if plan, fits := placement.Fit(pod.Demand, rooms[i]); fits {
			return nil, t.take(ctx, pod, plan, n, f)
		}
	}
	why := &Diagnosis{Diagnosis: diagnosis.Diagnosis{Refused: f.refused + unasked, Unasked: unasked, Reasons: f.reasons,
		Devices: placement.Explain(pod.Demand, without), Withheld: t.Cache.Index.Withheld(), WouldDo: t.Cache.Index.WouldDo(pod.Demand)}}
	if len(t.set) == 1 && why.Refused == 0 && len(rooms) == known {
		t.Queue.Classes.Note(t.seen.key+podrequest.EquivalenceClass(pod.Pod), &why.Devices, since)
	}
	return why, nil
}

// take makes the plan on a node the pod's, which leaves less of the node. It is the node that
// was accepted last.
func (t *cycle) take(ctx context.Context, pod Request, plan placement.Plan, room *placement.Node, f *nodeFilter) error {
	if len(t.set) > 1 && t.Filters.Undecided(pod.Pod) != nil {
		if err := t.reserveFor(ctx, f.cycle, plan.Node); err != nil {
			return err
		}
	}
	if t.touched == nil {
		t.touched = map[string]*touched{}
	}
	on := t.touched[plan.Node]
	if on == nil {
		on = &touched{t.seen.behind(room), room}
		t.touched[plan.Node] = on
		t.names = append(t.names, plan.Node)
	}
	on.left = on.left.Without(&plan)
	t.choices = append(t.choices, binding.Assignment{Pod: pod.Pod, Plan: plan})
	return nil
}

func (t *cycle) reserveFor(ctx context.Context, cycle *feasible.Cycle, node string) error {
	end, err := cycle.Reserve(ctx, node)
	if err == nil {
		t.reserved = append(t.reserved, end)
	}
	return err
}

// decided are the choices with the ledgers that they were made on.
func (t *cycle) decided() ([]binding.Assignment, error) {
	for i := range t.choices {
		c := &t.choices[i]
		if c.Ledger = t.Cache.Index.Behind(t.touched[c.Plan.Node].shown); c.Ledger == nil {
			return nil, queue.ErrAgain
		}
	}
	return t.choices, nil
}

// end has the filters count the pods of the set where they are in truth, and the
// ranking see their nodes as they are. What was tried is no change: a set that waits would be
// looked at again and again for having been looked at.
func (t *cycle) end() {
	for _, end := range slices.Backward(t.reserved) {
		end()
	}
	t.assumed.End()
	for _, c := range t.choices[:t.counted] {
		t.show(c.Plan.Node)
	}
	t.counted, t.reserved, t.others = 0, nil, false
}

// reserveForOthers has the filters take for taken what those pods will take of volumes and of
// other drivers' devices that are on their way and not waited for any more.
func (t *cycle) reserveForOthers(ctx context.Context) error {
	if t.others {
		return nil
	}
	t.others = true
	until := t.Clock.Now().Add(RoundTime)
	for _, other := range t.Queue.NotWaitedFor(podsOf(t.set)) {
		if !t.Clock.Now().Before(until) {
			break
		}
		node := podstate.TargetNode(other)
		// Counted there it would be in its own way.
		err := t.Cache.Without(other, func() error { return t.reserveOn(ctx, other, node) })
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, errStale):
			// What its author wrote fails it, an expression of a claim for one. That is no
			// matter of the pods that are decided on.
			t.Log.V(1).Info("Cannot say what another pod takes", "pod", podstate.KeyOf(other), "node", node, "err", err)
		}
	}
	return nil
}

// reserveOn has the filters take for taken what the pod will take on its node, errStale if
// they refuse it there.
func (t *cycle) reserveOn(ctx context.Context, pod *corev1.Pod, node string) error {
	cycle, err := t.Filters.Start(ctx, pod)
	if err != nil {
		return err
	}
	switch against, err := cycle.Refusals(ctx, node); {
	case err != nil:
		return err
	case len(against) > 0:
		return errStale
	}
	return t.reserveFor(ctx, cycle, node)
}

// nodeFilter asks the scheduler's filters about nodes for one pod, about each once.
type nodeFilter struct {
	*Scheduler
	pod    *corev1.Pod
	in     *domain
	cycle  *feasible.Cycle
	looked map[string]bool
	// refused is how many nodes the scheduler would refuse, for reasons.
	refused int
	reasons diagnosis.Reasons
	// avoided is true where a node was left out, since a write of its ledger was refused.
	avoided bool
}

func (f *nodeFilter) accepts(ctx context.Context, node string) (bool, error) {
	if f.looked[node] || f.in.excludes(f.pod, node) || !f.Cache.Settled(node) {
		return false, nil
	}
	if f.Binder != nil && f.Binder.Avoids(f.pod, node) {
		f.avoided = true
		return false, nil
	}
	if err := f.begin(ctx); err != nil {
		return false, err
	}
	f.looked[node] = true
	if podrequest.OnIdle(f.pod) && !f.lends(node) {
		f.refused++
		f.reasons.Add([]string{tideShut})
		f.Queue.AddPodAfter(f.pod, tideAgain)
		return false, nil
	}
	against, err := f.cycle.Refusals(ctx, node)
	if err != nil || len(against) == 0 {
		return err == nil, err
	}
	f.refused++
	f.reasons.Add(against)
	return false, nil
}

// begin begins the cycle, once.
func (f *nodeFilter) begin(ctx context.Context) error {
	if f.cycle != nil {
		return nil
	}
	cycle, err := f.Filters.Start(ctx, f.pod)
	if err == nil {
		f.cycle, f.looked, f.reasons = cycle, map[string]bool{}, diagnosis.Reasons{}
	}
	return err
}

// postFilter asks the PostFilter for a node, for a pod that is placed alone and for which there
// are devices. later reports that it is not to be asked now.
func (t *cycle) postFilter(ctx context.Context, pod Request, wants *ranking.Ask, f *nodeFilter) (found, later bool, err error) {
	if len(t.set) > 1 || t.PostFilter == nil || t.asker.Item.Gang.API == podrequest.Workload || f.refused == 0 && t.ranking.Short(wants) {
		return false, false, nil
	}
	best, later, err := t.PostFilter.PostFilter(ctx, pod, t.rooms, func() (*feasible.Cycle, error) { err := f.begin(ctx); return f.cycle, err })
	if best == nil || err != nil {
		return false, later, err
	}
	return true, false, t.take(ctx, pod, best.Plan, best.Room, f)
}
