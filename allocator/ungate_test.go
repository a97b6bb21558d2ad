// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Invariant 7: a pod that is changed while it is decided on, which the watch has
// not shown yet, is decided on anew; it is not let go to a node that no longer
// suits it.
func TestChangedWhileDecidedOn(t *testing.T) {
	n1 := objects.Node("n1")
	n1.Labels = map[string]string{"disk": "ssd"}
	want := corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}}
	terms := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{want}}}}
	tests := []struct {
		name string
		edit func(*corev1.Pod)
		home string
	}{
		{"nothing that matters", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, "n0"},
		{"selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, "n1"},
		{"affinity", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		}, "n1"},
		{"a node that nobody has", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "tape"} }, ""},
		{"demand", func(p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationShares] = objects.Single("p", v1alpha1.Share{GPUs: 1, Core: 20, MemMiB: 200}).Annotations[v1alpha1.AnnotationShares]
		}, "n0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t, 2)
			s.allocator.SetNode(objects.Node("n1"), n1)
			s.add("p", 10, 100)
			p := s.get("p")
			tt.edit(p)
			s.must(s.api.Update(t.Context(), p))
			s.work()
			p = s.get("p")
			if got := podstate.TargetNode(p); got != tt.home || podstate.Gated(p) != (tt.home == "") {
				t.Fatalf("Invariant 7: let go to %q, want %q", got, tt.home)
			}
			held := s.allocator.cache.Index.Holders(p.UID)
			if tt.home == "" {
				if len(held) > 0 {
					t.Errorf("Invariant 6: waits and holds slices on %v", held)
				}
				return
			}
			shares := podrequest.Of(p).Shares
			if len(held) != 1 || !grants.Serves(s.ledger(tt.home), p.UID, shares) {
				t.Errorf("holds slices on %v, asks for %+v", held, shares)
			}
		})
	}
}

// What a write has answered is kept no larger than what the watch shows.
func TestWrittenPodIsTrimmed(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 10, 100, func(p *corev1.Pod) {
		p.Annotations["example.com/large"] = "x"
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LARGE", Value: "x"}}
	})
	s.readAll()
	s.step()
	known := s.allocator.cache.Pod(types.NamespacedName{Namespace: "ns", Name: "p"})
	if podstate.Gated(known) || known.Annotations["example.com/large"] != "" || known.Spec.Containers[0].Env != nil {
		t.Errorf("gated %v, keeps %v and %v", podstate.Gated(known), known.Annotations, known.Spec.Containers[0].Env)
	}
}
