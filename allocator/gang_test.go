// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

func onDevice(uuid string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGPUUUID] = uuid }
}

// seats is where the pods are placed, as pod:node, with those that wait left out.
func (s *stage) seats(names ...string) string {
	s.t.Helper()
	var placed []string
	for _, name := range names {
		if p := s.get(name); podstate.TargetNode(p) != "" {
			placed = append(placed, name+":"+podstate.TargetNode(p))
		}
	}
	return strings.Join(placed, " ")
}

// A member that can go to one place only has it, although a larger one that could
// go anywhere is decided on first.
func TestGangMakesWay(t *testing.T) {
	s := newStage(t, 1)
	s.add("anywhere", 70, 700, objects.InGang("g", 2))
	s.add("picky", 60, 600, objects.InGang("g", 2), onDevice("GPU-n0-0"))
	s.work()
	if got := s.seats("anywhere", "picky"); got != "anywhere:n0 picky:n0" {
		t.Errorf("placed %q; told %q", got, s.told())
	}
}

// Nor is a member in the way that can have no place at all, where there are enough
// without it.
func TestGangLeavesOut(t *testing.T) {
	for _, device := range []string{"GPU-n0-0", "GPU-n0-1"} {
		s := newStage(t, 1)
		s.add("anywhere", 70, 700, objects.InGang("g", 2))
		s.add("picky", 60, 600, objects.InGang("g", 2), onDevice(device))
		s.add("hopeless", 90, 900, objects.InGang("g", 2), onDevice("GPU-n9-9"))
		s.readAll()
		s.work()
		if got := s.seats("anywhere", "picky", "hopeless"); got != "anywhere:n0 picky:n0" {
			t.Errorf("%s: placed %q; told %q", device, got, s.told())
		}
	}
}

// Members that run count: so many as are missing start together, fewer wait.
func TestGangIsMadeWholeAgain(t *testing.T) {
	s := newStage(t, 2)
	for i := range 4 {
		s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 4))
	}
	s.work()
	if got := s.seats("m0", "m1", "m2", "m3"); strings.Count(got, ":") != 4 {
		t.Fatalf("placed %q", got)
	}
	s.vanish(s.get("m0"))
	s.vanish(s.get("m1"))
	s.work()
	// Two are missing, one is made again, and somebody else takes a device.
	s.add("other", 60, 600)
	s.work()
	s.add("m0", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m0-again" })
	s.work()
	s.pass(queue.ElsewherePatience)
	if got := s.seats("m0", "other"); !strings.HasPrefix(got, "other:") {
		t.Errorf("placed %q: m0 has nobody to start with", got)
	}
	if told := fmt.Sprint(s.told()); !strings.Contains(told, "3 of 4 pods are there") {
		t.Errorf("told %s", told)
	}
	s.add("m1", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m1-again" })
	s.work()
	if got := s.seats("m0", "m1"); got != "" {
		t.Errorf("placed %q, there is room for one only", got)
	}
	s.vanish(s.get("other"))
	s.work()
	if got := s.seats("m0", "m1"); strings.Count(got, ":") != 2 {
		t.Errorf("placed %q, want both", got)
	}
	// One that is missing starts alone, and so does one more than there must be.
	s.vanish(s.get("m2"))
	s.work()
	s.add("m2", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m2-again" })
	s.add("m4", 20, 200, objects.InGang("g", 4))
	s.work()
	if got := s.seats("m2", "m4"); strings.Count(got, ":") != 2 {
		t.Errorf("placed %q, want both", got)
	}
}

// What was held for a gang that nobody comes back to is free when the hold ends, and
// not before.
func TestHoldEnds(t *testing.T) {
	s := newStage(t, 1)
	l := s.ledger("n0")
	for i := range 2 {
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: fmt.Sprintf("GPU-n0-%d", i), Core: 100, Mem: objects.DeviceMiB,
			Slices: []v1alpha1.Slice{{Pod: "gone", Owner: "ns/gone", Ctr: "c", Core: 100, Mem: objects.DeviceMiB}}})
	}
	grants.Hold(l, "podgroups.kueue.x-k8s.io/ns/gone", s.clock.Now().Add(binding.HoldFor), "gone")
	s.must(s.api.Update(t.Context(), l))
	s.notify(l, false)
	s.add("next", 10, 100)
	s.pass(binding.HoldFor - time.Second)
	if got := s.seats("next"); got != "" {
		t.Errorf("Invariant 1: placed %q into what is held", got)
	}
	s.pass(time.Second)
	if got := s.seats("next"); got != "next:n0" {
		t.Errorf("placed %q; told %q", got, s.told())
	}
}

// A gang that waits says so once, and again when the figures have changed for long.
func TestGangIsToldOnce(t *testing.T) {
	s := newStage(t, 1)
	s.add("m0", 10, 100, objects.InGang("g", 3))
	s.work()
	s.add("m1", 10, 100, objects.InGang("g", 3))
	s.work()
	if told := s.told(); len(told) != 0 {
		t.Errorf("told at once: %q", told)
	}
	s.pass(queue.ElsewherePatience)
	want := "Warning VernierWaiting Kueue's pod group ns/g: 2 of 3 pods are there; they start together (annotation kueue.x-k8s.io/pod-group-total-count)"
	if told := s.told(); len(told) != 2 || told[0] != want || told[1] != want {
		t.Errorf("told %q, want %q twice", told, want)
	}
	s.vanish(s.get("m1"))
	s.work()
	s.pass(queue.ElsewherePatience)
	if told := s.told(); len(told) != 0 {
		t.Errorf("told again so soon: %q", told)
	}
	s.pass(notify.RepeatAfter)
	if told := s.told(); len(told) != 1 || !strings.Contains(told[0], "1 of 3 pods are there") {
		t.Errorf("told %q", told)
	}
}

// That a gang can never fit is told when it is so for sure.
func TestGangThatNeverFits(t *testing.T) {
	s := newStage(t, 1) // with two devices
	never := func(asks ...scheduling.Request) bool {
		return s.allocator.scheduler.NeverFits(asks, len(asks), scheduling.Within{})
	}
	n := 0
	pod := func(core v1alpha1.Percent, mem v1alpha1.MiB, edits ...func(*corev1.Pod)) scheduling.Request {
		n++
		return s.set(s.add(fmt.Sprintf("p%d", n), core, mem, edits...))[0]
	}
	for name, tt := range map[string]struct {
		asks  []scheduling.Request
		never bool
	}{
		"two that fill a device each":   {[]scheduling.Request{pod(100, 1), pod(100, 1)}, false},
		"more than there is":            {[]scheduling.Request{pod(90, 1), pod(90, 1), pod(30, 1)}, true},
		"three alike of which two fit":  {[]scheduling.Request{pod(60, 1), pod(60, 1), pod(60, 1)}, true},
		"three alike, by their memory":  {[]scheduling.Request{pod(1, 600), pod(1, 600), pod(1, 600)}, true},
		"four alike that fit":           {[]scheduling.Request{pod(50, 1), pod(50, 1), pod(50, 1), pod(50, 1)}, false},
		"unlike ones, not known":        {[]scheduling.Request{pod(60, 1), pod(61, 1), pod(60, 1)}, false},
		"one place only, taken by none": {[]scheduling.Request{pod(70, 1), pod(60, 1, onDevice("GPU-n0-0"))}, false},
	} {
		if got := never(tt.asks...); got != tt.never {
			t.Errorf("%s: %v, want %v", name, got, tt.never)
		}
	}
	// What is granted now does not matter, nor what runs.
	s.work()
	if never(pod(100, 1), pod(100, 1)) {
		t.Error("devices that are in use are said not to be there")
	}
}

// A leader died when it had a part of what a gang needs, held or granted already.
// The next one goes on with it where all of the gang fits, and gives it back at once
// where not.
func TestHalfPlacedGang(t *testing.T) {
	for name, held := range map[string]bool{"held": true, "granted": false} {
		for _, fits := range []bool{true, false} {
			s := newStage(t, 2)
			var pods []*corev1.Pod
			for i := range 3 {
				pods = append(pods, s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 3)))
			}
			plan := func(node string, core v1alpha1.Percent, device int) placement.Plan {
				return placement.Plan{Node: node, Grants: []placement.Grant{{Container: "c", UUID: fmt.Sprintf("GPU-%s-%d", node, device), Core: core, Mem: 600}}}
			}
			half := s.ledger("n0")
			s.must(grants.Grant(half, pods[2].UID, "ns/m2", plan("n0", 60, 1)))
			if held {
				grants.Hold(half, "podgroups.kueue.x-k8s.io/ns/g", s.clock.Now().Add(binding.HoldFor), pods[2].UID)
			}
			s.must(s.api.Update(t.Context(), half))
			s.notify(half, false)
			if !fits {
				full := s.ledger("n1")
				for d := range 2 {
					s.must(grants.Grant(full, "other", "ns/other", plan("n1", 100, d)))
				}
				s.must(s.api.Update(t.Context(), full))
				s.notify(full, false)
			}
			s.readAll()
			s.work()
			now, placed := s.ledger("n0"), strings.Count(s.seats("m0", "m1", "m2"), ":")
			switch {
			case len(now.Spec.Holds) > 0:
				t.Errorf("Invariant 6: %s, fits %v: still held %+v", name, fits, now.Spec.Holds)
			case fits && (placed != 3 || len(now.Spec.Devices[0].Slices) == 0 || now.Spec.Devices[0].Slices[0].Pod != pods[2].UID):
				t.Errorf("%s: placed %d of 3; told %q; n0 has %+v", name, placed, s.told(), now.Spec.Devices)
			case !fits && (placed != 0 || len(grants.Pods(now)) != 0):
				t.Errorf("Invariant 6: %s: placed %d of a gang that does not fit, left %v", name, placed, grants.Pods(now))
			}
		}
	}
}

// A gang that does not fit is tried in a bounded number of orders, however many of its
// members could go first.
func TestOrdersAreBounded(t *testing.T) {
	const devices, members = 2 * scheduling.MaxOrders, 4 * scheduling.MaxOrders
	s := newStage(t, devices/2)
	for i := range members {
		s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", members))
	}
	const metric = "vernier_allocator_nodes_judged"
	before := measured(t, metric)
	s.work()
	if judged := measured(t, metric) - before; judged < 2*devices || judged > (scheduling.MaxOrders+1)*devices {
		t.Errorf("%v nodes judged for the %d places that there are, want at most %d orders", judged, devices, scheduling.MaxOrders+1)
	}
	if got := s.atTheGate("m0", "m1"); got != "m0 m1" {
		t.Errorf("at the gate: %q", got)
	}
}
