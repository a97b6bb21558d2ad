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
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
)

// waiter is why a pod waits and what it was told.
type waiter struct {
	// refused is true when there are devices on nodes that the scheduler would
	// refuse: then changes of nodes and pods can help too.
	refused bool
	// cause, told and at are of the last event: cause is the reason without its
	// figures.
	cause, told string
	at          time.Time
}

// toldAgain is how long a reason must have stood before new figures for it are
// worth another event.
const toldAgain = time.Minute

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

// keepWaiting notes that the pod fits nowhere and tells its owner when the cause
// is new, or its figures are and the last event is not fresh.
func (a *Allocator) keepWaiting(pod *corev1.Pod, short placement.Shortfall, refusedNodes int, why reasons) {
	told := short.String()
	cause := "short of " + short.Container
	if refusedNodes > 0 {
		cause = "refused " + strings.Join(slices.Sorted(maps.Keys(why)), ", ")
		text := fmt.Sprintf("%d node(s) have the devices, but the scheduler would refuse them: %s", refusedNodes, why)
		if short.Devices > 0 {
			text += "; elsewhere: " + told
		}
		told = text
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := keyOf(pod)
	if known := a.pods[key]; known == nil || known.UID != pod.UID {
		return
	}
	w, now := a.waiting[key], a.Clock.Now()
	w.refused = refusedNodes > 0
	if w.cause != cause || w.told != told && now.Sub(w.at) >= toldAgain {
		w.cause, w.told, w.at = cause, told, now
		a.tell(pod, corev1.EventTypeWarning, reasonWaiting, told)
	}
	a.waiting[key] = w
	waitingPods.Set(float64(len(a.waiting)))
}

// stopWaiting forgets that the pod waits. The caller holds mu.
func (a *Allocator) stopWaiting(key types.NamespacedName) {
	delete(a.waiting, key)
	waitingPods.Set(float64(len(a.waiting)))
}

// wake has the waiting pods looked at again, and the one that may be found to
// have to wait this moment. The caller holds mu.
func (a *Allocator) wake(scope wakeScope) {
	switch {
	case len(a.waiting) == 0 && a.placing == "":
	case scope == wakeAll:
		a.enqueue(item{wake: scope})
	default:
		a.enqueueAfter(item{wake: scope}, refusedDelay)
	}
}

func (a *Allocator) wakeNow(scope wakeScope) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range oldestFirst(a.pods) {
		key := keyOf(pod)
		if w, waits := a.waiting[key]; waits && (scope == wakeAll || w.refused) {
			a.enqueue(item{pod: key})
		}
	}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// ownerKey is the pod that a slice's owner names.
func ownerKey(owner string) types.NamespacedName {
	namespace, name, _ := strings.Cut(owner, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
