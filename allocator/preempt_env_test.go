// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

// ofClass gives the pod a priority class.
func ofClass(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.PriorityClassName = name }
}

// addPlain creates a pod without a share, on a node or for the scheduler.
func (s *server) addPlain(name, node, cpu string, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	for _, e := range edits {
		e(p)
	}
	s.must(s.Create(s.t.Context(), p))
	return p
}

func (s *server) addClasses() {
	s.t.Helper()
	never := corev1.PreemptNever
	for _, c := range []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "first"}, Value: 2000},
		{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000},
		{ObjectMeta: metav1.ObjectMeta{Name: "patient"}, Value: 1000, PreemptionPolicy: &never},
	} {
		s.must(s.Create(s.t.Context(), c))
	}
}

// awaitPreempted waits until the scheduler ends a pod, and is the kubelet that then has it go.
func (s *server) awaitPreempted(name string) {
	s.t.Helper()
	s.await(name+" to be preempted", func(context.Context) (bool, error) { return s.pod(name).DeletionTimestamp != nil, nil })
	s.must(s.Delete(s.t.Context(), s.pod(name), client.GracePeriodSeconds(0)))
}

// Invariant 7, against the real kube-scheduler: a pod gets the CPU of pods of lower priority
// as it would without a share, on the node where that does the least harm. One that may not
// preempt waits, and so does one of their own priority.
func TestThePriorityOfPods(t *testing.T) {
	s := startWith(t, nil)
	s.addClasses()
	for _, n := range []string{"n0", "n1", "n2"} {
		s.addNode(n)
		s.addPlain("on-"+n, n, "40")
		s.addPlain("more-on-"+n, n, "20", func(p *corev1.Pod) {
			if n == "n2" {
				p.Spec.Priority, p.Spec.PriorityClassName = nil, "urgent"
			}
		})
	}
	s.must(s.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keep"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "on-n0"}}}}))
	apiserver.StartScheduler(t, s.cfg)
	s.run()
	// Only on-n2 is too little, of more-on-n2 nobody may be ended; on-n0 has its budget.
	s.addPod("patient", objects.Share(10, 100), objects.CPU("30"), ofClass("patient"))
	s.addPod("equal", objects.Share(10, 100), objects.CPU("30"))
	for _, name := range []string{"patient", "equal"} {
		s.awaitEvent(name, notify.ReasonWaiting, "3 node(s) have the devices, but the scheduler would refuse them: 3 Insufficient cpu")
	}
	s.addPod("urgent", objects.Share(10, 100), objects.CPU("50"), ofClass("urgent"))
	if at := s.awaitPlaced("urgent").Node; at != "n1" {
		t.Errorf("placed on %s; on n1 there are pods of lower priority and no budget for them", at)
	}
	s.awaitPreempted("on-n1")
	s.awaitPreempted("more-on-n1")
	s.awaitBound("urgent")
	// A pod that comes in their place does not get the CPU back, and nothing moves any more.
	s.addPlain("again", "", "40", objects.OnNode("n1"))
	s.await("the scheduler to refuse it", func(context.Context) (bool, error) { return len(s.pod("again").Status.Conditions) > 0, nil })
	if again := s.pod("again"); !strings.Contains(again.Status.Conditions[0].Message, "preemption: ") {
		t.Errorf("the scheduler does not say that it looked whom to preempt: %+v", again.Status.Conditions)
	}
	for _, name := range []string{"patient", "equal"} {
		if !podstate.Gated(s.pod(name)) {
			t.Errorf("pod %s was ungated", name)
		}
	}
	for _, e := range s.events("urgent") {
		if strings.HasPrefix(e, notify.ReasonPinRefused) {
			t.Error(e)
		}
	}
}

// Invariant 7, against the real kube-scheduler: room that it has made for a pod, and keeps
// for it until those that it has ended are gone, is no room for others.
func TestRoomOfNominatedPods(t *testing.T) {
	s := startWith(t, nil)
	s.addClasses()
	s.addNode("n0")
	s.addPlain("victim", "n0", "40", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/slow"} })
	apiserver.StartScheduler(t, s.cfg)
	s.run()
	// 24 are free. The nominated pod leaves nothing of them.
	nominated := s.addPlain("nominated", "", "60", ofClass("urgent"))
	s.await("its node to be made ready for it", func(context.Context) (bool, error) { return s.pod("nominated").Status.NominatedNodeName == "n0", nil })
	s.addPod("share", objects.Share(10, 100), objects.CPU("10"))
	s.awaitEvent("share", notify.ReasonWaiting, "1 node(s) have the devices, but the scheduler would refuse them: 1 Insufficient cpu")
	// It is kept from pods of the same or of lower priority only.
	s.addPod("first", objects.Share(10, 100), objects.CPU("10"), ofClass("first"))
	s.awaitPlaced("first")
	s.awaitBound("first")
	// The nominated pod is given up: the room is there.
	s.must(s.Delete(t.Context(), nominated, client.GracePeriodSeconds(0)))
	s.awaitPlaced("share")
	s.awaitBound("share")
	victim := s.pod("victim")
	victim.Finalizers = nil
	s.must(s.Update(t.Context(), victim))
}
