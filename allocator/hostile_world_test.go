// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// honestWait is how long a pod that fits may take to be placed, whatever other tenants do.
const honestWait = 5 * time.Second

// createIn is a user of a namespace with a pod that asks for this share.
func (w *world) createIn(namespace string, s v1alpha1.Share, edits ...func(*corev1.Pod)) *corev1.Pod {
	w.made++
	p := objects.Pod(fmt.Sprintf("p%d", w.made), map[string]v1alpha1.Share{"a": s})
	p.Namespace, p.UID, p.CreationTimestamp = namespace, types.UID(p.Name), metav1.NewTime(w.now())
	p.Labels = map[string]string{"app": "x"}
	for _, e := range edits {
		e(p)
	}
	w.create(p)
	return p
}

// createHostile is a tenant who means no good: whose pod is never bound and selects everybody,
// or says more about where it goes than may be, or is one of a gang of unlike ones without room.
func (w *world) createHostile() {
	switch w.rand.Intn(3) {
	case 0:
		w.createIn("hostile", objects.Share(1, 1), hostile)
	case 1:
		w.createIn("hostile", objects.Share(1, 1), hostile, func(p *corev1.Pod) {
			terms := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			*terms = slices.Repeat(*terms, v1alpha1.MaxSchedulingTerms+1)
		})
	default:
		for i := range 6 {
			w.createIn("hostile", objects.Share(v1alpha1.Percent(60+i), 1), objects.InGang("g", 6), hostile)
		}
	}
}

// isHostile reports whether the pod is a hostile tenant's.
func isHostile(p *corev1.Pod) bool { return strings.HasPrefix(p.Namespace, "hostile") }

// checkHonest asserts that an honest pod that fits is placed in time, with what is hostile in the
// cluster, beside a gang of many unlike members without room, and while fresh pods that are never
// bound come each second, on a machine so slow that each look at the clock takes a millisecond,
// and 40 for each member of a gang. False if it would not have fitted.
func (w *world) checkHonest() bool {
	w.calm = true
	for _, n := range w.nodes {
		n.heal()
		n.watch()
		n.report()
	}
	// The others only watch, or what they do would take this one's time.
	leader := w.replicas[0]
	leader.time.WithTicker = &slowClock{w.clock, func() time.Duration {
		for _, search := range leader.allocator.scheduler.Searches() {
			if search.Running {
				return 40 * time.Millisecond
			}
		}
		return time.Millisecond
	}}
	defer func() { leader.time.WithTicker = w.clock }()
	var fresh []*corev1.Pod
	next := w.clock.Now()
	live := func() {
		if !w.clock.Now().Before(next) {
			next = next.Add(time.Second)
			// Each in a namespace of its own, so that they wait for each other no longer than
			// an honest one does.
			fresh = append(fresh, w.createIn("", objects.Share(1, 1), hostile, objects.InNamespace(fmt.Sprint("hostile-", w.made))))
			if n := len(fresh); n > 4 {
				w.vanish(w.find(fresh[n-5].UID))
			}
		}
		w.clock.Step(50 * time.Millisecond)
		for _, r := range w.replicas {
			r.readAll()
		}
		leader.queue.ring()
		for n := leader.queue.Len(); n > 0 && leader.step(); n-- {
		}
	}
	for start := w.clock.Now(); w.clock.Since(start) < honestWait; {
		live()
	}
	const unlike = 50 // which is some percent for each, and more than the nodes have
	for i := range unlike {
		w.createIn("hostile", objects.Share(8, v1alpha1.MiB(1+i)), objects.InGang("unlike", unlike))
	}
	// It comes when the worker has just begun with those.
	start := w.clock.Now()
	live()
	honest := w.createIn("honest", objects.Share(1, 1), []func(*corev1.Pod){func(*corev1.Pod) {}, objects.Near("x")}[w.rand.Intn(2)])
	if !w.fits(honest) {
		return false
	}
	for ; podstate.Gated(w.find(honest.UID)); live() {
		if took := w.clock.Since(start); took > honestWait {
			w.fail("pod %s fits and is not placed after %v", honest.Name, took)
			break
		}
	}
	return true
}

// fits reports whether a node has room for the pod, by what the ledgers and the API server say.
func (w *world) fits(p *corev1.Pod) bool {
	truth := index.New()
	for _, n := range w.nodes {
		truth.Put(w.ledger(n.name))
	}
	demand, err := placement.DemandOf(podrequest.Of(p), w.classes)
	w.must(err)
	return slices.ContainsFunc(placement.Rank(demand, truth.Room()), func(plan placement.Plan) bool {
		return w.accepts(plan.Node, p) && w.replicas[0].allocator.cache.Settled(plan.Node)
	})
}
