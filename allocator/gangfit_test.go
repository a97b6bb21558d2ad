// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// set are pods that are decided on together, as those of a gang.
func (s *stage) set(pods ...*corev1.Pod) (asks []scheduling.Request) {
	s.t.Helper()
	for len(s.watch) > 0 {
		s.read()
	}
	for _, p := range pods {
		demand, err := placement.DemandOf(podrequest.Of(p), nil)
		s.must(err)
		asks = append(asks, scheduling.Request{Pod: p, Demand: demand})
	}
	return asks
}

// decided are the choices of a set as pod:node.
func (s *stage) decided(set []scheduling.Request) string {
	s.t.Helper()
	choices, miss, err := fit(s.t.Context(), s.allocator, set, len(set))
	s.must(err)
	if miss != nil {
		return fmt.Sprintf("%d fit, %s has none: %s", miss.Fits, miss.Pod.Name, miss.Why)
	}
	var got []string
	for _, c := range choices {
		got = append(got, c.Pod.Name+":"+c.Plan.Node)
	}
	return strings.Join(got, " ")
}

// Invariant 1: pods of a set do not get the same room, and the choices for a node
// are granted in one write. Invariant 7: they do not get the same CPU either.
func TestSetIsDecidedTogether(t *testing.T) {
	s := newStage(t, 2)
	small, big := s.add("small", 30, 300, cpu("40")), s.add("big", 80, 800, cpu("40"))
	if got := s.decided(s.set(small, big)); got != "big:n0 small:n1" {
		t.Errorf("with 40 of 64 CPUs each: %q", got)
	}
	a, b := s.add("a", 60, 600), s.add("b", 60, 600)
	choices, _, err := fit(t.Context(), s.allocator, s.set(a, b), 2)
	s.must(err)
	r := s.allocator.binder.NewRound()
	for _, c := range choices {
		_, err := r.Grant(&c)
		s.must(err)
	}
	r.Finish(t.Context(), nil)
	for d := range 2 {
		if devices := s.ledger("n0").Spec.Devices; len(devices) != 2 || len(devices[d].Slices) != 1 {
			t.Errorf("Invariant 1: granted %+v", devices)
		}
	}
}

// A set is placed whole or not at all, and what was tried leaves no trace.
func TestSetIsAllOrNothing(t *testing.T) {
	s := newStage(t, 2)
	var pods []*corev1.Pod
	for i := range 5 {
		pods = append(pods, s.add(fmt.Sprintf("p%d", i), 60, v1alpha1.MiB(100), cpu("20")))
	}
	if got := s.decided(s.set(pods...)); !strings.HasPrefix(got, "4 fit, p4 has none: container c needs 60 % compute") {
		t.Fatalf("four devices for five pods: %q", got)
	}
	if got := s.decided(s.set(pods[:4]...)); got != "p0:n0 p1:n0 p2:n1 p3:n1" {
		t.Errorf("four pods on four devices: %q", got)
	}
	// Had the filters gone on counting them, no node had 60 CPUs.
	if got := s.decided(s.set(s.add("wide", 10, 10, cpu("60")))); got != "wide:n0" {
		t.Errorf("after the sets: %q", got)
	}
}
