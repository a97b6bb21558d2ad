// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/ranking"
)

// A pod whose priority is higher than that of others gets their CPU, their memory and
// whatever else of a node the scheduler deals out, by preemption: the scheduler ends them.
// It does so for pods that it has before it, and a pod at our gate it has not. So a pod for
// which there are devices, on nodes that the scheduler would refuse, is let go to one of
// these all the same where the scheduler says that it would preempt for it. Slices are
// nobody's to preempt: the devices must be free.
//
// This is for pods alone. A gang waits until there is room for all of it.

const (
	// preemptAgain is how long a pod waits for at least before it is looked again whether
	// the scheduler would preempt for it: that asks far more nodes than are asked otherwise.
	preemptAgain = 30 * time.Second
	// maxPreemptAsked is how many nodes are asked at a time.
	maxPreemptAsked = 100
	// preemptShare is the part of the worker's time that may go into looking for such
	// nodes, one in so many: in a large cluster each look takes tens of milliseconds, and a
	// thousand pods may wait for one. Nobody else is placed meanwhile.
	preemptShare = 4
)

// preemptions is what is known of pods for which others are to be ended.
type preemptions struct {
	// inVain are the gated pods for which no node would do when it was asked last.
	inVain map[types.UID]inVain
	// letGo are the pods that went where others are in their way.
	letGo map[types.UID]bool
	// notBefore is until when no others like one of these go that was refused although
	// nothing is known to be in its way but whom the scheduler was to preempt.
	notBefore map[kindred]time.Time
	// pause is until when no nodes are looked for, so that others are placed.
	pause time.Time
}

// kindred are the pods that fare like one that was refused: those that its controller makes
// in its place, and where its scheduler does not preempt at all, all of that scheduler's,
// whose controller is empty.
type kindred struct {
	scheduler  string
	controller types.UID
}

// inVain is when it was asked for a pod, and how many of the best nodes the next time is
// to pass over since it was these: the others would never be asked otherwise.
type inVain struct {
	at   time.Time
	over int
}

// preempt chooses the node on which the scheduler would do the least harm for the pod.
// False when there is none, or it is not to be asked now; later if that is only because
// others have to be placed first. The pod is looked at again then.
func (t *trial) preempt(ctx context.Context, pod ask, wants *ranking.Ask, j *judge) (found, later bool, err error) {
	if len(t.set) > 1 || j.refused == 0 && t.ranking.Short(wants) || !t.Filters.MayPreempt(pod.pod) || !t.preemptsNow(pod.pod) {
		return false, false, nil
	}
	if t.preemptsLater(pod.pod) {
		return false, true, nil
	}
	start := t.Clock.Now()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		now := t.Clock.Now()
		t.preemptions.pause = now.Add((preemptShare - 1) * now.Sub(start))
	}()
	if err := j.begin(ctx); err != nil {
		return false, false, err
	}
	rooms := t.index.Room()
	plans := placement.Rank(pod.demand, rooms)
	best, over, err := t.leastHarm(ctx, pod.pod, plans, j)
	if err != nil {
		return false, false, err
	}
	if best == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.preemptions.inVain[pod.pod.UID] = inVain{t.Clock.Now(), over}
		if over > 0 {
			t.enqueueAfter(t.itemOf(pod.pod), preemptAgain)
		}
		return false, false, nil
	}
	t.mu.Lock()
	t.preemptions.letGo[pod.pod.UID] = true
	t.mu.Unlock()
	i := slices.IndexFunc(rooms, func(n *placement.Node) bool { return n.Name == best.Node })
	return true, false, t.take(ctx, pod, *best, rooms[i], j)
}

// leastHarm is the best of the plans on the nodes that are asked, nil if none of them would
// do. Nodes without a pod that might have to go don't count among those. over is how many
// plans the next time is to pass over, 0 if all were looked at that were not before.
func (t *trial) leastHarm(ctx context.Context, pod *corev1.Pod, plans []placement.Plan, j *judge) (best *placement.Plan, over int, err error) {
	t.mu.Lock()
	first := t.preemptions.inVain[pod.UID].over
	t.mu.Unlock()
	if first >= len(plans) {
		first = 0
	}
	var least feasible.Harm
	asked := 0
	for i := first; i < len(plans); i++ {
		if asked == maxPreemptAsked {
			over = i
			break
		}
		if j.unsettled(plans[i].Node) || !j.cycle.MayPreempt(plans[i].Node) {
			continue
		}
		asked++
		harm, would, err := j.cycle.Preempts(ctx, plans[i].Node)
		if err != nil {
			return nil, 0, err
		}
		if would && (best == nil || harm.Compare(least) < 0) {
			best, least = &plans[i], harm
		}
	}
	if best != nil {
		t.Log.Info("the scheduler is to preempt", "pod", podstate.KeyOf(pod), "node", best.Node, "pods", least.Pods, "priority", least.Highest)
	}
	return best, over, nil
}

// preemptsNow tells whether it is time to ask for the pod; if not, it is looked at again
// when it is.
func (a *Allocator) preemptsNow(pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := a.preemptions.notBefore[kindred{scheduler: pod.Spec.SchedulerName}]
	if made := madeBy(pod); made.controller != "" && a.preemptions.notBefore[made].After(due) {
		due = a.preemptions.notBefore[made]
	}
	if last, asked := a.preemptions.inVain[pod.UID]; asked && last.at.Add(preemptAgain).After(due) {
		due = last.at.Add(preemptAgain)
	}
	return !a.putOff(pod, due)
}

// preemptsLater tells whether enough time went into looking for nodes for now. The pod is
// looked at again when there is time.
func (a *Allocator) preemptsLater(pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.putOff(pod, a.preemptions.pause)
}

// putOff has the pod looked at again when it is due, if that is later than now. The caller
// holds mu.
func (a *Allocator) putOff(pod *corev1.Pod, due time.Time) bool {
	wait := due.Sub(a.Clock.Now())
	if wait > 0 {
		a.enqueueAfter(a.itemOf(pod), wait)
	}
	return wait > 0
}

// preemptedInVain notes that a pod is refused although the scheduler was to preempt for it.
// Where it would not any more, as on a node that was cordoned meanwhile, the filters know
// why, and whoever is decided next is decided with it.
func (a *Allocator) preemptedInVain(ctx context.Context, pod *corev1.Pod) error {
	a.mu.Lock()
	was := a.preemptions.letGo[pod.UID]
	a.mu.Unlock()
	if !was {
		return nil
	}
	would, err := a.stillPreempts(ctx, pod)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.preemptions.letGo, pod.UID)
	if !would {
		return nil
	}
	like := kindred{scheduler: pod.Spec.SchedulerName}
	if looksForVictims(pod) {
		if like = madeBy(pod); like.controller == "" {
			return nil // nobody makes it again
		}
	}
	now := a.Clock.Now()
	maps.DeleteFunc(a.preemptions.notBefore, func(_ kindred, until time.Time) bool { return !until.After(now) })
	a.preemptions.notBefore[like] = now.Add(refusedHold)
	a.Log.Info("the scheduler does not preempt where it was to; no pod like this is let go for it to do so for a while",
		"pod", podstate.KeyOf(pod), "scheduler", like.scheduler, "controller", like.controller, "while", refusedHold.String())
	return nil
}

// stillPreempts tells whether the scheduler, as far as its filters are ours, would preempt
// for a pod on the node that it went to.
func (a *Allocator) stillPreempts(ctx context.Context, pod *corev1.Pod) (bool, error) {
	// Counted there it would be in its own way.
	a.mu.Lock()
	a.tellFilters(pod, "")
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if known := a.pods[podstate.KeyOf(pod)]; known != nil && known.UID == pod.UID {
			a.tellFilters(known, a.seat(known))
		}
	}()
	cycle, err := a.Filters.Start(ctx, pod)
	if err != nil {
		return false, err
	}
	_, would, err := cycle.Preempts(ctx, podstate.TargetNode(pod))
	return would, err
}

// looksForVictims tells whether the scheduler says, in its reasons against a pod, that it
// has looked whom to preempt. The default one does so of every pod, unless its preemption
// is switched off.
func looksForVictims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && strings.Contains(c.Message, "preemption: ")
	})
}

// madeBy are the pods that the pod's controller makes; without a controller there is none.
func madeBy(pod *corev1.Pod) kindred {
	made := kindred{scheduler: pod.Spec.SchedulerName}
	if controller := metav1.GetControllerOf(pod); controller != nil {
		made.controller = controller.UID
	}
	return made
}
