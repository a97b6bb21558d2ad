// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
)

// An owner of a reservation that can never run is to keep nobody from the room for ever. What it
// selects may have changed since (Recheck), or a container of it never starts: then its slices are
// its own, as those of any pod, but no room is made for the next pod of its controller.

// StartLate is how long after it got its slices a pod is to have started.
const StartLate = 10 * time.Minute

// given is an owner of a reservation that has its slices, since when.
type given struct {
	controller controller
	at         time.Time
}

// controller is one of a namespace: a tenant may name any UID as its pod's owner.
type controller struct {
	namespace string
	uid       types.UID
}

// unstarted is why a pod does not start, and until when no room is made for others of its controller.
type unstarted struct {
	why   string
	until time.Time
}

// Ended is for a reservation that has ended, and why: see reservation.OnEnd.
func (p *Preemption) Ended(r *reservation.Reservation, why string) {
	p.mu.Lock()
	for _, pod := range r.Pods {
		known, owner := p.cache.Current(pod), metav1.GetControllerOfNoCopy(pod)
		if known != nil && owner != nil && !podstate.Gated(known) {
			p.given[pod.UID] = given{controller{pod.Namespace, owner.UID}, p.clock.Now()}
		}
	}
	p.mu.Unlock()
	if why != "" {
		p.tell(r, notify.ReasonUnreserved, "room is reserved for it no longer: "+why)
	}
}

// checkStart notes whether a pod that was given reserved room has started, or does not in time. The
// caller holds mu.
func (p *Preemption) checkStart(pod *corev1.Pod) {
	g, is := p.given[pod.UID]
	now := p.clock.Now()
	switch {
	case !is:
	case pod.Status.Phase != corev1.PodPending || podstate.AnyStarted(pod):
		delete(p.given, pod.UID)
		delete(p.unstarted, g.controller)
	case now.Sub(g.at) >= StartLate:
		why := fmt.Sprintf("pod %s of its controller got the room that was reserved for it, and has not started for %v", pod.Name, StartLate)
		if text := podstate.WaitingMessage(pod); text != "" {
			why += ": " + text
		}
		why += "; delete it, or mend what keeps it"
		p.unstarted[g.controller] = unstarted{why, now.Add(StartLate)}
	}
}

// notStarting is why no room is made for the pods, empty where it is: one of the same controller has
// got some, and does not start.
func (p *Preemption) notStarting(pods []*corev1.Pod) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.given {
		if pod := p.cache.PodOf(uid); pod != nil {
			p.checkStart(pod)
		}
	}
	now := p.clock.Now()
	maps.DeleteFunc(p.unstarted, func(_ controller, u unstarted) bool { return !u.until.After(now) })
	for _, pod := range pods {
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
			if u, is := p.unstarted[controller{pod.Namespace, owner.UID}]; is {
				return "no room is made for it: " + u.why
			}
		}
	}
	return ""
}

// Recheck ends the reservation of one of the first that wait where the scheduler would refuse its
// pods although the others have left. Their selectors, or the nodes, may have changed. It looks once
// in PassedOver. CPU and memory that are short may be those of pods that fill the room until then.
func (p *Preemption) Recheck(ctx context.Context, w Waiter) error {
	r, now := p.reservations.Of(w.Item), p.clock.Now()
	if r == nil || r.Kind != reservation.Head || now.Sub(r.Made) < PassedOver || now.Sub(p.rechecked[w.Item]) < PassedOver {
		return nil
	}
	maps.DeleteFunc(p.rechecked, func(_ queue.Item, at time.Time) bool { return now.Sub(at) >= PassedOver })
	p.rechecked[w.Item] = now
	pl := p.newPlanner(scheduling.AskerOf(p.cache, w.Item, w.Pods), nil)
	defer pl.assumed.End()
	leaving, left, why := slices.Collect(maps.Keys(r.Leaving)), slices.Clone(r.Plans), ""
	for _, pod := range w.Pods {
		at := -1
		for i := 0; i < len(left) && at < 0; i++ {
			if err := pl.judge(ctx, pod, left[i].Node, leaving, func(cycle *feasible.Cycle, against []string) (err error) {
				against = slices.DeleteFunc(slices.Clone(against), func(reason string) bool { return strings.HasPrefix(reason, "Insufficient ") })
				would := len(against) == 0
				if !would && len(w.Pods) == 1 && p.filters.MayPreempt(pod.Pod) {
					_, would, err = cycle.Preempts(ctx, left[i].Node, p.cache.Priorities.MayEnd(pod.Pod))
				}
				if at = i; !would {
					at, why = -1, fmt.Sprintf("the scheduler would refuse the pod on node %s: %s", left[i].Node, strings.Join(against, ", "))
				}
				return err
			}); err != nil {
				return err
			}
		}
		if at >= 0 {
			if err := pl.assumed.Count(pod.Pod, left[at].Node); err != nil {
				return err
			}
			left = slices.Delete(left, at, at+1)
		}
	}
	if len(r.Plans)-len(left) < w.Need && why != "" {
		p.passedOver[w.Item] = now.Add(PassedOver)
		p.reservations.Drop(r, why)
	}
	return nil
}
