// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Of those that wait the one with the highest priority goes first, however many wait and
// came before it; to a new leader as well.
func TestUrgentGoesFirst(t *testing.T) {
	for at := range 4 {
		newLeader := at%2 == 1
		s := newStage(t, 1)
		if at > 1 {
			s.priorityClasses = nil // then it counts among pods of its namespace
			s.restart()
		}
		s.add("first", v1alpha1.WholeGPU, objects.DeviceMiB)
		s.add("second", v1alpha1.WholeGPU, objects.DeviceMiB)
		s.work()
		for i := range 3 * queue.MaxMoves {
			s.add(fmt.Sprintf("a%02d", i), v1alpha1.WholeGPU, objects.DeviceMiB)
		}
		s.work()
		s.add("urgent", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(1000), neverPreempts)
		s.work()
		if !podstate.Gated(s.get("urgent")) || podstate.Gated(s.get("first")) || podstate.Gated(s.get("second")) {
			t.Fatal("the node is not full")
		}
		s.vanish(s.get("first"))
		if newLeader {
			s.node("n0").watch()
			s.node("n0").report() // the pod that was gone before anybody led
			s.restart()
		}
		s.work()
		s.expect("urgent:*")
	}
}

// A scheduler that does not preempt, where it was to, has no pods deleted and made again
// for ever: the next one waits, for as long as a refused pod keeps its slices.
func TestPreemptedInVain(t *testing.T) {
	s := newStage(t, 1)
	s.addPlain("plain", "n0", "60")
	s.add("urgent", 10, 100, objects.CPU("40"), objects.Priority(1000), objects.Controlled)
	s.add("usual", 10, 100, objects.CPU("40"))
	s.work()
	if podstate.Gated(s.get("urgent")) || !podstate.Gated(s.get("usual")) {
		t.Fatalf("urgent waits: %v, usual waits: %v; the scheduler would preempt for the first", podstate.Gated(s.get("urgent")), podstate.Gated(s.get("usual")))
	}
	s.unschedulable("urgent")
	s.pass(bindwatch.RefusedGrace)
	if s.get("urgent") != nil {
		t.Fatal("not given up")
	}
	s.newEvents()
	s.add("again", 10, 100, objects.CPU("40"), objects.Priority(1000), objects.Controlled)
	s.pass(bindwatch.RefusedHold - time.Second)
	s.expect("again")
	s.says("1 Insufficient cpu")
	s.pass(time.Second)
	s.expect("again:*")
}

// Who was ungated where others are to be preempted keeps its place through a new leader.
func TestPreemptingIsAdopted(t *testing.T) {
	s := newStage(t, 2)
	for _, n := range []string{"n0", "n1"} {
		s.addPlain("on-"+n, n, "60")
	}
	p := s.add("urgent", 10, 100, objects.CPU("40"), objects.Priority(1000))
	s.grant("n1", p.UID, 0, 10, 100)
	s.work()
	if got := podstate.TargetNode(s.get("urgent")); got != "n1" {
		t.Errorf("on %q, its slices were on n1", got)
	}
}

// The nodes that are asked for a pod at a time are not always the same: one that would do is
// found even if it is none of the best, with nothing happening meanwhile. Those on which
// nobody may have to go don't count.
func TestAllNodesAreAsked(t *testing.T) {
	const nodes = preemption.MaxNodes + 2
	for _, below := range []bool{true, false} {
		s := newStage(t, nodes)
		last := ""
		for i := range nodes {
			n := fmt.Sprint("n", i)
			last = max(last, n)
		}
		for i := range nodes {
			n := fmt.Sprint("n", i)
			switch {
			case n == last:
				s.addPlain("on-"+n, n, "60")
			case below:
				s.addPlain("on-"+n, n, "5")
				s.addPlain("large-on-"+n, n, "55", objects.Priority(1000))
			default:
				s.addPlain("large-on-"+n, n, "60", objects.Priority(1000))
			}
		}
		s.add("urgent", 10, 100, objects.CPU("40"), objects.Priority(1000))
		s.work()
		if at := podstate.TargetNode(s.get("urgent")); below != (at == "") {
			t.Fatalf("pods of lower priority everywhere: %v; placed on %q at once", below, at)
		}
		s.pass(preemption.RetryAfter)
		if at := podstate.TargetNode(s.get("urgent")); at != last {
			t.Errorf("pods of lower priority everywhere: %v; placed on %q, want %s", below, at, last)
		}
	}
}

// Looking for nodes where others are to be ended takes a part of the worker's time, however
// many pods want it. The others have their turn, and are not told meanwhile that they wait.
func TestPreemptionLeavesTime(t *testing.T) {
	const pods, took = 5, 100 * time.Millisecond
	s := newStage(t, pods)
	for i := range pods {
		n := fmt.Sprint("n", i)
		s.addPlain("on-"+n, n, "60")
		s.add(fmt.Sprint("urgent", i), 10, 100, objects.CPU("40"), objects.Priority(1000))
	}
	s.logged = func(line string) {
		if strings.Contains(line, "is to preempt") {
			s.clock.Step(took)
		}
	}
	gone := func() (n int) {
		for i := range pods {
			if !podstate.Gated(s.get(fmt.Sprint("urgent", i))) {
				n++
			}
		}
		return n
	}
	s.readAll()
	for went := 1; went <= pods; went++ {
		s.work()
		if got := gone(); got != went {
			t.Fatalf("%d went, want %d", got, went)
		}
		for _, sent := range s.newEvents() {
			if strings.Contains(sent, notify.ReasonWaiting) {
				t.Errorf("events %q", sent)
			}
		}
		s.pass((preemption.WorkerShare-1)*took - time.Millisecond)
		if again := gone(); again != went {
			t.Fatalf("%d went before it was time, want %d", again, went)
		}
		s.clock.Step(time.Millisecond)
		s.queue.ring()
	}
}
