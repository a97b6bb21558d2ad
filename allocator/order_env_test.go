// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

func (s *server) awaitBound(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.await(name+" to be bound", func(context.Context) (bool, error) { return s.pod(name).Spec.NodeName != "", nil })
	}
}

// Invariant 7, against the real kube-scheduler: of two pods of which the first may be
// anywhere only as long as it is the first of its app, the second comes to the scheduler
// once the first is bound, even where the scheduler would prefer it.
func TestTheSchedulersOrder(t *testing.T) {
	s := startWith(t, nil)
	s.addNode("n0")
	s.addNode("n1")
	urgent := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}
	s.must(s.Create(t.Context(), urgent))
	s.run()
	s.addPod("first", objects.Share(10, 100), objects.OnNode("n0"), objects.Labelled("x"), objects.Near("x"))
	s.awaitPlaced("first")
	s.addPod("second", objects.Share(10, 100), objects.OnNode("n1"), objects.Labelled("x"), func(p *corev1.Pod) { p.Spec.PriorityClassName = urgent.Name })
	// When this one is placed, second has been looked at.
	s.addPod("last", objects.Share(10, 100), objects.OnNode("n1"))
	s.awaitPlaced("last")
	apiserver.StartScheduler(t, s.cfg)
	s.awaitBound("first", "second", "last")
}

// A pod that the order of the others has made a bad pin of, past our gate, is healed like
// any other: it is counted, and its controller's next one goes where it may.
func TestBadOrderIsHealed(t *testing.T) {
	s := startWith(t, nil)
	s.addNode("n0")
	s.addNode("n1")
	s.run()
	s.addPod("first", objects.Share(10, 100), objects.Labelled("x"), objects.Near("x"), objects.Controlled)
	at := s.awaitPlaced("first").Node
	other := map[string]string{"n0": "n1", "n1": "n0"}[at]
	// A pod without a share, which nobody holds back.
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "foreign", Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{NodeName: other, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	s.must(s.Create(t.Context(), foreign))
	const counter = "pin_refusals_total"
	before := measured(t, counter)
	apiserver.StartScheduler(t, s.cfg)
	s.await("first to be given up", func(ctx context.Context) (bool, error) {
		err := s.Get(ctx, client.ObjectKey{Namespace: "ns", Name: "first"}, &corev1.Pod{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if n := measured(t, counter) - before; n < 1 {
		t.Errorf("%v pins counted", n)
	}
	s.addPod("again", objects.Share(10, 100), objects.Labelled("x"), objects.Near("x"), objects.Controlled)
	if got := s.awaitPlaced("again").Node; got != other {
		t.Errorf("placed on %s, the app is on %s", got, other)
	}
	s.awaitBound("again")
}
