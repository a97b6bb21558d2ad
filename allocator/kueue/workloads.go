// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/served"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// Reserved is how long room is reserved for a Workload's pods that have not come.
	Reserved = 5 * time.Minute
	// FirstRetry and LastRetry bound the pause before Kueue tries a Workload again for which there is no
	// room; it doubles each time.
	FirstRetry = 15 * time.Second
	LastRetry  = 5 * time.Minute
)

// Read is the pod that admission makes of one that is created so, as JSON. The error says why it is
// refused. It is nil for a pod that has nothing to do with us.
type Read func(namespace string, pod []byte) (*corev1.Pod, error)

// Config is what the check works with.
type Config struct {
	// Client writes verdicts. It must not cache.
	Client       client.Client
	Cache        *cache.Cache
	Queue        *queue.Queue
	Scheduler    *scheduling.Scheduler
	Reservations *reservation.Reservations
	// Read reads the templates of Workloads, and Enabled reports whether admission reads the pods of a namespace. It is
	// not known of one that has not been seen yet.
	Read    Read
	Enabled func(namespace string) (enabled, known bool)
	Classes *classes.Set
	Clock   clock.WithTicker
	Log     logr.Logger
}

// Workloads are Kueue's, as the watch shows them. It may be used concurrently, but for Decide and Rebuild, which
// are the worker's.
type Workloads struct {
	Config

	mu sync.Mutex
	// known are the Workloads, checks the AdmissionChecks that are ours, flavors the ResourceFlavors.
	known   map[types.NamespacedName]*workload
	checks  map[string]*admissionCheck
	flavors map[string]*resourceFlavor
	states  map[string]served.State
	// asks are the pods of Workloads that are being decided on: a search that yields goes on with the same.
	asks map[types.NamespacedName][]scheduling.Request
	// why is why a Workload was to be tried again.
	why map[types.NamespacedName]string
	// verdicts are not written yet; writes is the queue of writes.
	verdicts map[types.NamespacedName]verdict
	writes   writes
}

// New knows of no Workloads.
func New(c Config) *Workloads {
	return &Workloads{Config: c, known: map[types.NamespacedName]*workload{}, checks: map[string]*admissionCheck{}, flavors: map[string]*resourceFlavor{},
		states: map[string]served.State{}, asks: map[types.NamespacedName][]scheduling.Request{}, why: map[types.NamespacedName]string{}, verdicts: map[types.NamespacedName]verdict{}}
}

// Resources are what is watched of Kueue's.
func (k *Workloads) Resources() []served.Resource {
	resource := func(name string, trim func(*unstructured.Unstructured) (metav1.Object, error), put, drop func(metav1.Object)) served.Resource {
		return served.Resource{Group: Group, Version: Version, Name: name, Trim: trim, Put: put, Drop: drop, State: func(now served.State) { k.setState(name, now) }}
	}
	return []served.Resource{
		resource("workloads", func(u *unstructured.Unstructured) (metav1.Object, error) { return workloadOf(u) },
			func(obj metav1.Object) { k.put(obj.(*workload)) },
			func(obj metav1.Object) { k.drop(obj.(*workload)) }),
		resource("admissionchecks", func(u *unstructured.Unstructured) (metav1.Object, error) {
			c := &admissionCheck{}
			return c, decode(u, c)
		}, func(obj metav1.Object) { k.putCheck(obj.(*admissionCheck)) }, func(obj metav1.Object) { k.dropCheck(obj.GetName()) }),
		resource("resourceflavors", func(u *unstructured.Unstructured) (metav1.Object, error) {
			f := &resourceFlavor{}
			return f, decode(u, f)
		}, func(obj metav1.Object) { k.putFlavor(obj.(*resourceFlavor)) }, func(obj metav1.Object) { k.dropFlavor(obj.GetName()) }),
	}
}

func (k *Workloads) setState(name string, now served.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.states[name] = now; now == served.Read {
		return
	}
	switch name {
	case "workloads":
		clear(k.known)
	case "admissionchecks":
		clear(k.checks)
	case "resourceflavors":
		clear(k.flavors)
	}
}

// Await waits until all has been read or found not to be served, for so long at most.
func (k *Workloads) Await(ctx context.Context, atMost time.Duration) {
	_ = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, atMost, true, func(context.Context) (bool, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		return !slices.ContainsFunc(k.Resources(), func(r served.Resource) bool { return k.states[r.Name] == served.Unread }), nil
	})
}

// put takes in a Workload.
func (k *Workloads) put(w *workload) {
	k.mu.Lock()
	if old := k.known[w.key()]; old != nil && old.UID == w.UID && podstate.OlderVersion(w.ResourceVersion, old.ResourceVersion) {
		k.mu.Unlock()
		return
	}
	k.known[w.key()] = w
	due, paused := k.due(w), k.paused(w)
	k.mu.Unlock()
	if paused {
		k.write(task{workload: w.key(), pause: true})
	}
	if due {
		k.Queue.Add(itemOf(w.key()))
	} else if !w.holdsQuota() {
		k.unreserve(w.key())
	}
}

func (k *Workloads) drop(w *workload) {
	k.mu.Lock()
	delete(k.known, w.key())
	delete(k.verdicts, w.key())
	delete(k.why, w.key())
	k.mu.Unlock()
	k.unreserve(w.key())
}

func (k *Workloads) unreserve(key types.NamespacedName) {
	if r := k.Reservations.Of(itemOf(key)); r != nil {
		k.Reservations.Drop(r, "")
	}
}

func (k *Workloads) putCheck(c *admissionCheck) {
	if c.Spec.ControllerName != v1alpha1.AdmissionCheckController {
		k.dropCheck(c.Name)
		return
	}
	k.mu.Lock()
	k.checks[c.Name] = c
	k.mu.Unlock()
	k.write(task{check: c.Name})
	k.AddDue()
}

func (k *Workloads) dropCheck(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.checks, name)
}

func (k *Workloads) putFlavor(f *resourceFlavor) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flavors[f.Name] = f
}

func (k *Workloads) dropFlavor(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.flavors, name)
}

// AddDue has all Workloads looked at that wait for a verdict: there is more room, or a new leader.
func (k *Workloads) AddDue() {
	k.mu.Lock()
	var due []types.NamespacedName
	for key, w := range k.known {
		if k.due(w) {
			due = append(due, key)
		}
	}
	k.mu.Unlock()
	slices.SortFunc(due, podstate.CompareKeys)
	for _, key := range due {
		k.Queue.Add(itemOf(key))
	}
}

// due reports whether the Workload waits for a verdict. That is so too where it was ready, and waits for
// something else for longer than room is reserved. The caller holds mu.
func (k *Workloads) due(w *workload) bool {
	if _, said := k.verdicts[w.key()]; said || !w.holdsQuota() || w.admitted() {
		return false
	}
	return slices.ContainsFunc(w.Status.AdmissionChecks, func(c checkState) bool {
		return k.checks[c.Name] != nil && (c.State == pending || c.State == ready && len(c.PodSetUpdates) > 0 && k.Reservations.Of(itemOf(w.key())) == nil)
	})
}

// Decide decides on a Workload, if it waits for that.
func (k *Workloads) Decide(ctx context.Context, name podrequest.Group) error {
	key := keyOf(name)
	k.mu.Lock()
	w := k.known[key]
	if w == nil || !k.due(w) {
		delete(k.asks, key)
		k.mu.Unlock()
		return nil
	}
	asks, begun := k.asks[key]
	k.mu.Unlock()
	if !begun {
		var err error
		if asks, err = k.asksOf(w); errors.As(err, &unadmissible{}) {
			k.say(w, verdict{state: rejected, message: err.Error()})
			return nil
		} else if err != nil {
			return err
		}
	}
	switch {
	case len(asks) == 0:
		k.say(w, verdict{state: ready, message: "no pod asks for a share of a GPU"})
		return nil
	case len(asks) > maxPods:
		k.say(w, verdict{state: ready, message: fmt.Sprintf("nothing is reserved: it has more than %d pods with a share of a GPU", maxPods)})
		return nil
	}
	choices, outlook, why, err := k.Scheduler.Foresee(ctx, name, asks, false)
	if err == nil {
		k.say(w, k.judge(w, asks, choices, outlook, why))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if delete(k.asks, key); errors.As(err, &queue.Yield{}) {
		k.asks[key] = asks
	}
	return err
}

// judge is the verdict on a Workload; where its pods fit their room is reserved.
func (k *Workloads) judge(w *workload, asks []scheduling.Request, choices []binding.Assignment, outlook scheduling.Outlook, why string) verdict {
	switch outlook {
	case scheduling.Fits:
		if k.reserve(w, asks, choices, k.Clock.Now().Add(Reserved)) {
			return verdict{state: ready, reserved: true, message: fmt.Sprintf("room for %d pods is reserved for %v", len(asks), Reserved)}
		}
		why = "there are as many reservations as may be, and others go before it"
	case scheduling.Leaving:
		return verdict{state: pending, message: "waits for pods that are ending: " + why}
	case scheduling.Preempts:
		return verdict{state: ready, message: "nothing is reserved, the pods evict others of lower priority: " + why}
	case scheduling.Never:
		return verdict{state: rejected, message: why + "; the GPUs that the pods may use would not be enough if nothing else ran: ask for less, or add nodes"}
	}
	return verdict{state: retry, message: why}
}

func (k *Workloads) reserve(w *workload, asks []scheduling.Request, choices []binding.Assignment, until time.Time) bool {
	r := &reservation.Reservation{Kind: reservation.Workload, Owner: itemOf(w.key()), UID: w.UID, Made: k.Clock.Now(), Expires: until,
		Priority: scheduling.AskerOf(k.Cache, itemOf(w.key()), asks).Priority}
	for _, c := range choices {
		r.Plans, r.Classes = append(r.Plans, c.Plan), append(r.Classes, podrequest.EquivalenceClass(c.Pod))
	}
	return k.Reservations.Put(r)
}

// Rebuild reserves room again for Workloads that were ready a short time ago and lack pods. A new leader
// calls it before it decides on anything.
func (k *Workloads) Rebuild(ctx context.Context) {
	k.mu.Lock()
	had := map[*workload]time.Time{}
	for _, w := range k.known {
		if until, is := k.reservedUntil(w); is {
			had[w] = until
		}
	}
	k.mu.Unlock()
	for _, w := range slices.SortedFunc(maps.Keys(had), func(a, b *workload) int { return podstate.CompareKeys(a.key(), b.key()) }) {
		if err := k.rebuild(ctx, w, had[w]); err != nil {
			k.Log.Error(err, "Cannot reserve the room of a Workload again", "workload", w.key())
		}
	}
}

// reservedUntil is until when room was reserved for the Workload; false where none is. The caller holds mu.
func (k *Workloads) reservedUntil(w *workload) (time.Time, bool) {
	for _, c := range w.Status.AdmissionChecks {
		until := c.LastTransitionTime.Add(Reserved)
		if w.holdsQuota() && k.checks[c.Name] != nil && c.State == ready && len(c.PodSetUpdates) > 0 && until.After(k.Clock.Now()) {
			return until, true
		}
	}
	return time.Time{}, false
}

func (k *Workloads) rebuild(ctx context.Context, w *workload, until time.Time) error {
	asks, err := k.asksOf(w)
	if err != nil || len(asks) > maxPods {
		return err
	}
	for _, pod := range k.Cache.ReservedFor(w.Namespace, w.UID) {
		if podstate.Gated(pod) && len(k.Cache.Index.Holders(pod.UID)) == 0 {
			continue
		}
		class := podrequest.EquivalenceClass(pod)
		at := slices.IndexFunc(asks, func(a scheduling.Request) bool { return podrequest.EquivalenceClass(a.Pod) == class })
		if at >= 0 {
			asks = slices.Delete(asks, at, at+1)
		}
	}
	if len(asks) == 0 {
		return nil
	}
	choices, outlook, _, err := k.Scheduler.Foresee(ctx, itemOf(w.key()).Gang, asks, true)
	if err == nil && outlook == scheduling.Fits {
		k.reserve(w, asks, choices, until)
	}
	return err
}
