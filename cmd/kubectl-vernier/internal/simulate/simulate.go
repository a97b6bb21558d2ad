// SPDX-License-Identifier: Apache-2.0

// Package simulate owns the trial placement of pods that do not exist. It places one after the other
// on a copy of what the ledgers leave, on nodes that the scheduler's filters accept.
//
// It never writes to the API server. It does not know: pods that others create
// at the same time, preemption, and volumes and claims that the pods would bring with them.
package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/feasible"
	ledgers "vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// MaxPods bounds how many pods of one object are placed.
const MaxPods = 1000

// Cluster is a copy of what the ledgers leave.
type Cluster struct {
	ledgers  []v1alpha1.SliceLedger
	pointers []*v1alpha1.SliceLedger // to these
	kept     view.Kept
	// rooms that pods placed so far leave, by node.
	rooms map[string]*placement.Node
	// filters are the scheduler's; nil where they are not asked.
	filters *feasible.Filters
	made    int
}

// New copies what the ledgers leave beside what is kept for others. Without filters every node
// counts as accepted.
func New(all []v1alpha1.SliceLedger, kept view.Kept, filters *feasible.Filters) *Cluster {
	c := &Cluster{ledgers: all, kept: kept, rooms: map[string]*placement.Node{}, filters: filters}
	for i := range all {
		c.pointers = append(c.pointers, &all[i])
		if room := ledgers.Room(&all[i]); room != nil {
			c.rooms[all[i].Name] = kept.Hide(room)
		}
	}
	return c
}

// Placed are the pods of one object that found room.
type Placed struct {
	// Nodes of the pods, in their order.
	Nodes []string
	// Classes of nodes as the first pod that waits finds them, or where none does the first. Lacks is
	// why that pod waits, nil where none does.
	Classes []view.NodeClass
	Lacks   *diagnosis.Diagnosis

	pods []*corev1.Pod
}

// Place places copies of the pod until one finds no room. The next would find none either.
func (c *Cluster) Place(ctx context.Context, pod *corev1.Pod, demand *placement.Demand, copies int) (Placed, error) {
	var done Placed
	for i := range min(copies, MaxPods) {
		next := c.copyOf(pod)
		look, err := c.look(ctx, next)
		if err != nil {
			return done, err
		}
		plan := look.first(placement.Rank(demand, slices.Collect(maps.Values(c.rooms))))
		if plan == nil || i == 0 {
			done.Classes = view.FitIn(demand, c.ledgers, c.kept, func(l *v1alpha1.SliceLedger) *placement.Node { return c.rooms[l.Name] }, look.refusals)
		}
		if plan == nil {
			// The filters refuse nodes without the devices as well, for the amounts that they count.
			done.Lacks = diagnosis.Of(demand, c.inOrder, func(node string) []string {
				if !placement.Fits(demand, c.rooms[node]) {
					return nil
				}
				return look.reasons(node)
			})
		}
		if look.err != nil {
			return done, look.err
		}
		if d := done.Lacks; d != nil {
			d.Withheld = ledgers.Withheld(slices.Values(c.pointers))
			d.WouldDo = d.Withheld != "" && ledgers.WouldDo(demand, slices.Values(c.pointers))
		}
		if plan == nil {
			return done, nil
		}
		c.rooms[plan.Node] = c.rooms[plan.Node].Without(plan)
		if err := c.count(next, plan.Node); err != nil {
			return done, err
		}
		done.pods, done.Nodes = append(done.pods, next), append(done.Nodes, plan.Node)
	}
	return done, nil
}

// inOrder yields what is left of the nodes, in the ledgers' order.
func (c *Cluster) inOrder(yield func(*placement.Node) bool) {
	for _, l := range c.pointers {
		if room := c.rooms[l.Name]; room != nil && !yield(room) {
			return
		}
	}
}

// Try calls place, and takes back what it has placed if it reports false: a gang of which
// not enough pods find room takes none.
func (c *Cluster) Try(place func() ([]Placed, bool, error)) error {
	before := maps.Clone(c.rooms)
	placed, keep, err := place()
	if err != nil || keep {
		return err
	}
	c.rooms = before
	for _, p := range placed {
		for _, pod := range p.pods {
			if err := c.count(pod, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyOf is one more pod, as the scheduler would see it.
func (c *Cluster) copyOf(pod *corev1.Pod) *corev1.Pod {
	c.made++
	next := pod.DeepCopy()
	next.UID = types.UID(fmt.Sprintf("simulated-%d", c.made))
	next.Name = fmt.Sprintf("%s-%d", pod.Name, c.made)
	podrequest.DefaultRequests(next)
	return next
}

func (c *Cluster) count(pod *corev1.Pod, node string) error {
	if c.filters == nil {
		return nil
	}
	_, err := c.filters.Count(pod, node)
	return err
}

// look is what the scheduler's filters say of nodes for one pod.
type look struct {
	ctx   context.Context
	cycle *feasible.Cycle
	said  map[string][]string
	err   error
}

func (c *Cluster) look(ctx context.Context, pod *corev1.Pod) (*look, error) {
	l := &look{ctx: ctx, said: map[string][]string{}}
	if c.filters == nil {
		return l, nil
	}
	var err error
	l.cycle, err = c.filters.Start(ctx, pod)
	return l, err
}

// first is the best plan of which the filters accept the node; nil without one.
func (l *look) first(plans []placement.Plan) *placement.Plan {
	for i := range plans {
		if len(l.reasons(plans[i].Node)) == 0 {
			return &plans[i]
		}
	}
	return nil
}

// reasons are the filters' against a node; none where they accept it, or are not asked.
func (l *look) reasons(node string) []string {
	said, known := l.said[node]
	if known || l.cycle == nil || l.err != nil {
		return said
	}
	l.said[node], l.err = l.cycle.Refusals(l.ctx, node)
	return l.said[node]
}

// refusals are the reasons as text.
func (l *look) refusals(node string) string { return strings.Join(l.reasons(node), ", ") }
