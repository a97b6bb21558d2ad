// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// In a lab of gangs, so many of so many pods.
const gangsPerLab, podsPerGang = 6, 4

// Invariant 7, against the real kube-scheduler: gangs whose pods wish to be with each
// other. They are let go together, and it binds them in an order of its own.
func TestTheSchedulerTakesGangs(t *testing.T) {
	all := inLabs(t, (*lab).runGangs)
	t.Logf("%+v", all)
	if n := *labs; n > 2 && all.Bound < 6*n {
		t.Errorf("%+v: hardly a gang is placed", all)
	}
}

// runGangs has gangs come one by one.
func (l *lab) runGangs(all *tally) {
	l.acquaint()
	for g := range gangsPerLab {
		var created []*corev1.Pod
		for m := range podsPerGang {
			p := l.member(fmt.Sprintf("g%d", g), m)
			l.must(l.Create(l.Context(), p))
			created = append(created, p)
		}
		for _, p := range created {
			l.settle(p, all)
		}
	}
	if !l.await(func() bool { return len(l.stuck()) == 0 }) {
		for _, name := range l.stuck() {
			l.Errorf("Invariant 7: pod %s was ungated, and the scheduler does not bind it: %s", name, l.describe(name))
		}
	}
}

// member is a pod of a gang, of one of the gang's apps, that may wish to be near one of
// them, or to be alone on its node.
func (l *lab) member(gang string, m int) *corev1.Pod {
	p := objects.Pod(fmt.Sprintf("%s-%d", gang, m), map[string]v1alpha1.Share{"a": objects.Share(v1alpha1.Percent(5+l.Intn(60)), 50)})
	objects.InGang(gang, podsPerGang)(p)
	app := func() string { return gang + oneOf(l, "x", "y") }
	objects.Labelled(app())(p)
	p.Namespace, p.Spec.NodeSelector = l.name, map[string]string{"lab": l.name}
	if l.chance(50) {
		p.Annotations[v1alpha1.AnnotationPolicy] = string(v1alpha1.PolicySpread)
	}
	if l.chance(60) {
		affinityOf(p).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: oneOf(l, l.host(), l.zone()), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app()}}}}}
	}
	return p
}
