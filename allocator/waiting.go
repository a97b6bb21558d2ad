// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/podstate"
)

// waiter is why a pod waits and what it was told.
type waiter struct {
	// refused is true when there are devices on nodes that the scheduler would
	// refuse: then changes of nodes and pods can help too.
	refused bool
	// elsewhere is true when the pod waits for something else than room: the other
	// pods of its gang, or their gates, or a pod that is to be bound before it.
	elsewhere bool
	// cause is why it waits, without figures, and since is from when on.
	cause string
	since time.Time
	// explain is when that is to be found out again.
	explain time.Time
	told    notices
}

// causeInvalid is the cause of a pod that asks for what cannot be.
const causeInvalid = "invalid"

// reasons counts nodes by the scheduler's reason.
type reasons map[string]int

func (r reasons) add(of []string) {
	for _, reason := range of {
		r[reason]++
	}
}

// String lists the reasons as the scheduler does, the most frequent first.
func (r reasons) String() string {
	list := slices.SortedFunc(maps.Keys(r), func(a, b string) int {
		return cmp.Or(cmp.Compare(r[b], r[a]), strings.Compare(a, b))
	})
	for i, reason := range list {
		list[i] = fmt.Sprintf("%d %s", r[reason], reason)
	}
	return strings.Join(list, ", ")
}

// shortage is why a pod cannot be placed.
type shortage struct {
	// known is true when the set waits already, for the same kind of thing, and it was
	// found out why a moment ago. Then nothing else is said.
	known bool
	// refused is how many nodes have the devices and the scheduler would not take,
	// for reasons; unasked is how many of them lack CPU or memory and were not asked for
	// theirs. devices is what the others lack.
	refused int
	unasked int
	reasons reasons
	devices placement.Shortfall
	// withheld says what is not granted now of nodes and GPUs, empty for nothing.
	withheld string
}

// cause is what does not change with the figures.
func (s *shortage) cause() string {
	if s.refused > 0 {
		return "refused " + strings.Join(slices.Sorted(maps.Keys(s.reasons)), ", ")
	}
	return "short of " + s.devices.Container
}

func (s *shortage) String() string {
	if s.withheld == "" {
		return s.lacks()
	}
	return s.lacks() + "; " + s.withheld
}

func (s *shortage) lacks() string {
	text := s.devices.String()
	if s.refused == 0 {
		return text
	}
	refused := fmt.Sprintf("%d node(s) have the devices, but the scheduler would refuse them: %s", s.refused, s.reasons)
	if s.unasked > 0 {
		refused += fmt.Sprintf(", and %d more that lack CPU or memory", s.unasked)
	}
	if s.devices.Devices == 0 {
		return refused
	}
	return refused + "; elsewhere: " + text
}

// keepWaiting notes that a pod alone waits since it fits nowhere.
func (a *Allocator) keepWaiting(pod *corev1.Pod, why *shortage) {
	if why.known {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wait(pod, why.refused > 0, why.cause(), why.String())
}

// stillWaits tells whether all pods of the set wait, for devices or because they are
// refused, and it was found out why a moment ago. A crowd that waits is looked at often, and
// to find out what each lacks takes far longer than to see that it lacks something. What
// there is to find out now is found out when that is due, though nothing happens then.
func (a *Allocator) stillWaits(set []ask, refused bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := toldAgain
	for _, p := range set {
		w, waits := a.waiting[podstate.KeyOf(p.pod)]
		due = min(due, w.explain.Sub(a.Clock.Now()))
		if !waits || w.elsewhere || w.refused != refused || due <= 0 {
			return false
		}
	}
	a.enqueueAfter(a.itemOf(set[0].pod), due)
	return true
}

// wait notes that the pod waits and tells its owner. The caller holds mu.
func (a *Allocator) wait(pod *corev1.Pod, refused bool, cause, told string) {
	w, known := a.waits(pod, cause)
	if !known {
		return
	}
	w.refused, w.elsewhere = refused, false
	due, tells := a.tellWaiting(pod, &w, reasonWaiting, told, w.since)
	again := toldAgain
	// New figures can wait for the next look, another reason is not to be missed.
	if tells && w.told.last != cause {
		a.enqueueAfter(a.itemOf(pod), due)
		again = min(again, due)
	}
	w.explain = a.Clock.Now().Add(again)
	a.waiting[podstate.KeyOf(pod)] = w
}

// waits is what is known of the pod, which waits for the cause; false if it is gone.
// The caller holds mu.
func (a *Allocator) waits(pod *corev1.Pod, cause string) (w waiter, known bool) {
	key := podstate.KeyOf(pod)
	if p := a.pods[key]; p == nil || p.UID != pod.UID {
		return w, false
	}
	if w = a.waiting[key]; w.cause != cause {
		w.cause, w.since = cause, a.Clock.Now()
	}
	return w, true
}

// tellWaiting tells why the pod waits unless that was told, at once if it may be told
// so often and it has been so for long enough. Otherwise it says in how long that
// will be. The caller holds mu.
func (a *Allocator) tellWaiting(pod *corev1.Pod, w *waiter, reason, told string, notBefore time.Time) (in time.Duration, later bool) {
	due, news := w.told.due(w.cause, told)
	if !news {
		return 0, false
	}
	if a.hearing {
		return hearingAgain, true
	}
	if due.Before(notBefore) {
		due = notBefore
	}
	now := a.Clock.Now()
	if now.Before(due) {
		return due.Sub(now), true
	}
	w.told.enter(w.cause, told, now)
	if !a.wasHeard(pod, told) {
		a.tell(pod, corev1.EventTypeWarning, reason, told)
	}
	return 0, false
}

// elsewherePatience is how long a pod may wait for something else than room before it
// is told: as a rule the pods of a gang, their gates and their PodGroup come within
// moments of each other, and a pod is bound within moments of being let go.
const elsewherePatience = 5 * time.Second

// waitElsewhere notes that a pod waits for something else than room, and has its owner
// told once that has lasted. As with room, cause is what stays the same when figures
// change. The caller holds mu.
func (a *Allocator) waitElsewhere(pod *corev1.Pod, reason, cause, told string) {
	w, known := a.waits(pod, cause)
	if !known {
		return
	}
	w.elsewhere = true
	if due, later := a.tellWaiting(pod, &w, reason, told, w.since.Add(elsewherePatience)); later {
		a.enqueueAfter(a.itemOf(pod), due)
	}
	a.waiting[podstate.KeyOf(pod)] = w
}

// wasTold tells whether this leader told the pod's owner that it waits.
func (a *Allocator) wasTold(pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiting[podstate.KeyOf(pod)].told.by) > 0
}

// wake has the waiting pods looked at again, and those that may be found to have to
// wait this moment. The caller holds mu.
func (a *Allocator) wake(scope wakeScope) {
	a.wakes++
	if scope == wakeAll {
		a.scarce.forget()
	}
	switch {
	case len(a.waiting) == 0 && len(a.placing) == 0:
	case scope == wakeAll:
		a.enqueue(item{wake: scope})
	default:
		a.enqueueAfter(item{wake: scope}, refusedDelay)
	}
}

// maxWoken are so few at a time that a pod that has just come is looked at in the
// next round but one, however many wait.
const maxWoken = maxRound / 2

// wakeNow puts the waiting pods behind those that are woken already, oldest first, and
// the next of all on the queue.
func (a *Allocator) wakeNow(scope wakeScope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if scope != wakeMore {
		// Of a gang that starts together one is enough, the oldest.
		due := map[item]*corev1.Pod{}
		for key, w := range a.waiting {
			if pod := a.pods[key]; pod != nil && !w.elsewhere && (scope == wakeAll || w.refused) {
				it := a.itemOf(pod)
				if first := due[it]; first == nil || podstate.ByAge(pod, first) < 0 {
					due[it] = pod
				}
			}
		}
		for _, call := range a.woken {
			delete(due, call.item)
		}
		for _, pod := range podstate.OldestFirst(due) {
			a.woken = append(a.woken, call{a.itemOf(pod), podstate.Priority(pod)})
		}
	}
	for _, call := range a.nextWoken() {
		a.enqueue(call.item)
	}
	if len(a.woken) > 0 {
		a.enqueue(item{wake: wakeMore})
	}
}

// call is a waiting pod or gang that is to be looked at again.
type call struct {
	item
	priority int32
}

// nextWoken takes those off the woken that are looked at now, by priority. Half of them are
// those whose turn it is, so that everybody has one even where pods are woken again before
// all had theirs; the others are those of the highest priority. The caller holds mu.
func (a *Allocator) nextWoken() []call {
	n := min(len(a.woken), maxWoken/2)
	next := slices.Clone(a.woken[:n])
	a.woken = a.woken[n:]
	for len(next) < maxWoken && len(a.woken) > 0 {
		first := 0
		for i := range a.woken {
			if a.woken[i].priority > a.woken[first].priority {
				first = i
			}
		}
		next = append(next, a.woken[first])
		a.woken = slices.Delete(a.woken, first, first+1)
	}
	slices.SortStableFunc(next, func(p, q call) int { return cmp.Compare(q.priority, p.priority) })
	return next
}
