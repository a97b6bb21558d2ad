// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/test/objects"
	"vernier.dev/vernier/test/podgroups"
)

// ofVolcano has the pod name a PodGroup of Volcano's, and ask for its scheduler.
func ofVolcano(group string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[podrequest.AnnotationVolcanoGroup], p.Spec.SchedulerName = group, "volcano"
	}
}

// The pods of two Jobs of Volcano's come by turns, and there is room for one Job. Neither gets a half of it.
func TestVolcanosJobsDoNotHoldEachOtherUp(t *testing.T) {
	s := stageOf(t, 2, podgroups.Volcano("ns", "a", 3), podgroups.Volcano("ns", "b", 3))
	for i := range 3 {
		s.add(fmt.Sprint("a", i), 60, 600, ofVolcano("a"))
		s.add(fmt.Sprint("b", i), 60, 600, ofVolcano("b"))
		s.work()
	}
	s.expect("a0:* a1:* a2:* b0 b1 b2")
	s.says("PodGroup ns/b: room for 1 of the 3 pods that must start together")
	s.forget("a0", "a1", "a2")
	s.expect("b0:* b1:* b2:*")
}

// Two templates, of which the master asks for no share: it counts as started.
func TestVolcanosMasterWithoutAShare(t *testing.T) {
	s := stageOf(t, 2, podgroups.Volcano("ns", "train", 4))
	worker := func(i int, edits ...func(*corev1.Pod)) {
		s.add(fmt.Sprint("worker", i), 60, 600, append(edits, ofVolcano("train"))...)
	}
	worker(0)
	worker(1)
	worker(2)
	s.work()
	s.expect("worker0 worker1 worker2")
	s.addPlain("master", "", "1", func(p *corev1.Pod) { p.Annotations = map[string]string{} }, ofVolcano("train"))
	s.work()
	s.expect("worker0:* worker1:* worker2:*")
	// One that a restart policy makes again joins the others.
	s.forget("worker1")
	worker(1, func(p *corev1.Pod) { p.UID = "worker1-again" })
	s.work()
	s.expect("worker1:*")
}

// Without Volcano's PodGroups its annotation has no pod wait for others.
func TestVolcanosAnnotationAlone(t *testing.T) {
	s := stageOf(t, 1)
	s.add("p", 60, 600, ofVolcano("gone"), objects.Controlled)
	s.work()
	s.expect("p:n0")
}
