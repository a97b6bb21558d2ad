// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// clockedTracker is the objects of an API server whose clock is the world's: what is
// deleted says when that was asked for by the clock by which it was created, and by when
// it is to be gone.
type clockedTracker struct {
	clienttesting.ObjectTracker
	now func() time.Time
}

const gracePeriod = 30 * time.Second

func (c clockedTracker) Update(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.UpdateOptions) error {
	if p, is := obj.(*corev1.Pod); is && p.DeletionTimestamp != nil {
		stored, err := c.Get(gvr, ns, p.Name)
		if err != nil {
			return err
		}
		if was := stored.(*corev1.Pod); was.DeletionTimestamp == nil {
			grace := time.Duration(0)
			if p.Spec.NodeName != "" && !podstate.Terminal(p) {
				grace = gracePeriod
			}
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(c.now().Add(grace))), ptr.To(int64(grace/time.Second))
		}
	}
	return c.ObjectTracker.Update(gvr, obj, ns, opts...)
}

// ends notes when a pod has ended, by what happened to it and not by what it says.
func (w *world) ends(p *corev1.Pod) {
	if _, known := w.endedAt[p.UID]; !known && (podstate.Terminal(p) || p.DeletionTimestamp != nil) {
		w.endedAt[p.UID] = w.clock.Now()
	}
}

// lastRun is who is of the last run of a gang, as docs/concepts/gangs.md has it, of its
// pods from the oldest on.
func (w *world) lastRun(name podrequest.Group, pods []*corev1.Pod) []*corev1.Pod {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return w.madeAgain(p, pods) })
	begin := 0
	for i, p := range pods {
		if i > begin && !w.joins(p, pods[begin:i]) {
			begin = i
		}
	}
	return pods[begin:]
}

// madeAgain tells whether the controller of a pod was deleted, and another made under its
// name, which has made pods later.
func (w *world) madeAgain(p *corev1.Pod, pods []*corev1.Pod) bool {
	first := func(of types.UID) (at time.Time, has bool) {
		for _, p := range pods {
			if c := controllerOf(p); c.uid == of && p.DeletionTimestamp == nil {
				return p.CreationTimestamp.Time, true
			}
		}
		return at, false
	}
	own := controllerOf(p)
	began, has := first(own.uid)
	return own.uid != "" && has && slices.ContainsFunc(pods, func(other *corev1.Pod) bool {
		c := controllerOf(other)
		at, lives := first(c.uid)
		return c.controllerName == own.controllerName && c.uid != own.uid && lives && at.After(began)
	})
}

// collect deletes the pods of controllers that are no more, as far as others were made
// under their names.
func (w *world) collect() {
	for _, p := range slices.Clone(w.live) {
		if name, is := podrequest.GroupOf(p); is && p.DeletionTimestamp == nil && w.madeAgain(p, w.pods(name)) {
			w.must(w.remove(p.DeepCopy()))
		}
	}
}

// joins tells whether a pod is of the run of those before it.
func (w *world) joins(p *corev1.Pod, run []*corev1.Pod) bool {
	own, succeeded := false, 0
	for _, other := range run {
		if end, over := w.endedAt[other.UID]; !over || !p.CreationTimestamp.After(end) {
			return true
		}
		own = own || controllerOf(other).uid == controllerOf(p).uid
		if other.Status.Phase == corev1.PodSucceeded {
			succeeded++
		}
	}
	if name, _ := podrequest.GroupOf(p); own && controllerOf(p).uid == "" {
		return succeeded < w.gangs[name].total
	}
	return own
}

// checkRuns asserts that a replica has the same pods of a gang for its last run as happened,
// once it has read all.
func (w *world) checkRuns() {
	for name := range w.gangs {
		want := slices.DeleteFunc(slices.Clone(w.members(name)), func(p *corev1.Pod) bool { return standingOf(p) == out })
		for _, r := range w.replicas {
			if got := r.allocator.groups.Gang(name).Members; !slices.EqualFunc(got, want, func(p, q *corev1.Pod) bool { return p.UID == q.UID }) {
				w.fail("%s has %v for the last run of %s, want %v", r.name, namesOf(got), name, namesOf(want))
			}
		}
	}
}

func namesOf(pods []*corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}

// controllerInTest is what made a pod; the zero value for none.
type controllerInTest struct {
	controllerName
	uid types.UID
}

type controllerName struct{ group, kind, name string }

func controllerOf(p *corev1.Pod) controllerInTest {
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		return controllerInTest{}
	}
	api, _, _ := strings.Cut(ref.APIVersion, "/")
	return controllerInTest{controllerName{api, ref.Kind, ref.Name}, ref.UID}
}
