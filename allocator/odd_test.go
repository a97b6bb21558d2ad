// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A gated pod that was declared over, as by a controller that gives up on its job, gets no
// slices; one that waited does not go on waiting.
func TestFailedPod_WhenGated_GetsNoSlices(t *testing.T) {
	s := newStage(t, 1)
	s.add("fill", v1alpha1.WholeGPU, objects.DeviceMiB)
	s.add("next", v1alpha1.WholeGPU, objects.DeviceMiB)
	s.work()
	s.add("waits", v1alpha1.WholeGPU, objects.DeviceMiB)
	s.work()
	s.update("waits", func(st *corev1.PodStatus) { st.Phase = corev1.PodFailed })
	s.add("never", 10, 100, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	s.forget("fill")
	for _, name := range []string{"waits", "never"} {
		if !podstate.Gated(s.get(name)) || len(s.devicesOf("n0", types.UID(name))) > 0 {
			t.Errorf("pod %s is over and was ungated with %v", name, s.devicesOf("n0", types.UID(name)))
		}
	}
	if n := s.allocator.queue.Waiting()["devices"]; n > 0 {
		t.Errorf("%d pods wait", n)
	}
}

// A pod that no device is large enough for is told so, and costs no more than a look a minute until
// something changes, in which no node is judged.
func TestOversizedPod_WhenItWaits_JudgesNoNode(t *testing.T) {
	s := newStage(t, 2)
	s.add("memory", 10, objects.DeviceMiB+1)
	many := objects.Single("devices", v1alpha1.Share{GPUs: 3, Core: 10, MemMiB: 10})
	s.create(many)
	s.work()
	sent := strings.Join(s.newEvents(), "\n")
	for _, want := range []string{
		"container c needs 10 % compute and 1,001 MiB of a GPU, and none has so much: the largest is n0 GPU 0 with 1,000 MiB",
		"container c needs 10 % compute and 10 MiB on each of 3 GPUs of one node; nearest: n0 has room on 2",
	} {
		if !strings.Contains(sent, want) {
			t.Errorf("not events %q but %q", want, sent)
		}
	}
	looks, judged := 0, measured(t, "nodes_judged_sum")
	s.queue.taken = func(it queue.Item) {
		if it.Pod.Name != "" {
			looks++
		}
	}
	for range 60 {
		s.pass(time.Minute)
	}
	if n := measured(t, "nodes_judged_sum") - judged; looks > 60*2 || n > 0 || len(s.newEvents()) > 0 {
		t.Errorf("%d looks at two pods in an hour in which nothing happened, %v nodes judged", looks, n)
	}
}

// The machine under a node's name is replaced by another one between a decision and what
// follows it: other Node, for a moment still the old ledger, then one with other devices.
// Whoever was placed gets devices that are there, and nobody more than these have.
func TestAnotherMachineUnderTheName(t *testing.T) {
	s := newStage(t, 1)
	s.add("before", 60, 600)
	s.work()
	old := objects.Node("n0")
	s.must(s.api.Delete(t.Context(), old))
	s.notify(old, true)
	s.createNode("n0")
	s.work()
	s.add("between", 60, 600)
	s.work()
	s.expect("between:*")
	// Who cleans up deletes the ledger with the old Node; the new machine's agent makes its own.
	n := s.node("n0")
	s.destroy("n0")
	n.has = nil
	for _, uuid := range []string{"GPU-new-0", "GPU-new-1"} {
		n.own(hardware{uuid: uuid, mem: objects.DeviceMiB})
	}
	s.work()
	s.add("after", 60, 600)
	n.report() // makes it
	s.work()
	for _, name := range []string{"before", "between"} {
		s.schedule(s.get(name))
	}
	n.report() // shows the devices
	s.work()
	n.watch()
	n.start(always)
	n.report()
	s.work()
	for _, name := range []string{"before", "between"} {
		if got := s.devicesOf("n0", types.UID(name)); len(got) != 1 || !strings.HasPrefix(got[0], "GPU-new-") {
			t.Errorf("pod %s has %v", name, got)
		}
	}
	s.expect("after", "Invariant 1: granted to a third what the two have")
	s.check()
}

// A node that goes may be what kept a spread pod waiting: a domain where none of its kind
// is, and no room for one.
func TestSpreadPod_WhenNodeIsDeleted_IsPlaced(t *testing.T) {
	s := newStage(t, 3)
	for device := range 2 {
		s.use("n2", device, 100)
	}
	evenly := func(p *corev1.Pod) {
		objects.SpreadFrom(p)
		p.Spec.TopologySpreadConstraints[0].MaxSkew = 1
	}
	for _, name := range []string{"first", "second", "third"} {
		s.add(name, 10, 100, objects.Labelled("x"), evenly)
		s.work()
		if !podstate.Gated(s.get(name)) {
			s.bindNow(name)
		}
	}
	later := func() { // all is looked at that was woken
		s.work()
		s.clock.Step(queue.RefusedDelay)
		s.queue.ring()
		s.work()
	}
	later()
	s.expect("first:* second:* third")
	empty := objects.Node("n2")
	s.must(s.api.Delete(t.Context(), empty))
	s.notify(empty, true)
	later()
	s.expect("third:*")
}
