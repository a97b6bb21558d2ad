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
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A member that can go to one place only has it, although a larger one that could
// go anywhere is decided on first.
func TestGang_WhenAMemberHasOnePlace_OthersMakeWay(t *testing.T) {
	s := newStage(t, 1)
	s.add("anywhere", 70, 700, objects.InGang("g", 2))
	s.add("picky", 60, 600, objects.InGang("g", 2), onDevice("GPU-n0-0"))
	s.work()
	s.expect("anywhere:n0 picky:n0")
}

// Nor is a member in the way that can have no place at all, where there are enough
// without it.
func TestGang_WhenAMemberNeverFits_IsPlacedWithoutIt(t *testing.T) {
	for _, device := range []string{"GPU-n0-0", "GPU-n0-1"} {
		s := newStage(t, 1)
		s.add("anywhere", 70, 700, objects.InGang("g", 2))
		s.add("picky", 60, 600, objects.InGang("g", 2), onDevice(device))
		s.add("hopeless", 90, 900, objects.InGang("g", 2), onDevice("GPU-n9-9"))
		s.readAll()
		s.work()
		s.expect("anywhere:n0 picky:n0 hopeless")
	}
}

// Members that run count: so many as are missing start together, fewer wait.
func TestGangIsMadeWholeAgain(t *testing.T) {
	s := newStage(t, 2)
	s.addGang(4, 60, 600)
	s.work()
	s.expect("m0:* m1:* m2:* m3:*")
	s.forget("m0", "m1")
	// Two are missing, one is made again, and somebody else takes a device.
	s.add("other", 60, 600)
	s.work()
	s.add("m0", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m0-again" })
	s.work()
	s.pass(queue.ElsewherePatience)
	s.expect("m0 other:*")
	s.says("3 of 4 pods are there")
	s.add("m1", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m1-again" })
	s.work()
	s.expect("m0 m1")
	s.forget("other")
	s.expect("m0:* m1:*")
	// One that is missing starts alone, and so does one more than there must be.
	s.forget("m2")
	s.add("m2", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m2-again" })
	s.add("m4", 20, 200, objects.InGang("g", 4))
	s.work()
	s.expect("m2:* m4:*")
}

// Pods of a gang get neither the same room nor (Invariant 7) the same CPU. They are placed whole or
// not at all, and what was tried leaves no trace.
func TestGangIsPlacedTogether(t *testing.T) {
	s := newStage(t, 2)
	s.add("small", 30, 300, objects.InGang("g", 2), objects.CPU("40"))
	s.add("big", 80, 800, objects.InGang("g", 2), objects.CPU("40"))
	s.work()
	s.expect("big:n0 small:n1", "Invariant 7: 40 of 64 CPUs each")
	s = newStage(t, 2)
	s.addGang(5, 60, 100, objects.CPU("20"))
	s.work()
	s.expect("m0 m1 m2 m3 m4")
	s.says("room for 4 of the 5 pods that must start together")
	// Did the filters go on counting them, no node had 60 CPUs.
	s.add("wide", 10, 10, objects.CPU("60"))
	s.work()
	s.expect("wide:n0")
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
	s.put(l)
	s.add("next", 10, 100)
	s.pass(binding.HoldFor - time.Second)
	s.expect("next", "Invariant 1")
	s.pass(time.Second)
	s.expect("next:n0")
}

// A gang that waits says so once, and again when the figures have changed for long.
func TestGangIsToldOnce(t *testing.T) {
	s := newStage(t, 1)
	s.add("m0", 10, 100, objects.InGang("g", 3))
	s.work()
	s.add("m1", 10, 100, objects.InGang("g", 3))
	s.work()
	s.says()
	s.pass(queue.ElsewherePatience)
	want := "Warning VernierWaiting Kueue's pod group ns/g: 2 of 3 pods are there; they start together (annotation kueue.x-k8s.io/pod-group-total-count)"
	if sent := s.newEvents(); len(sent) != 2 || sent[0] != want || sent[1] != want {
		t.Errorf("events %q, want %q twice", sent, want)
	}
	s.forget("m1")
	s.pass(queue.ElsewherePatience)
	s.says()
	s.pass(notify.RepeatAfter)
	if sent := s.newEvents(); len(sent) != 1 || !strings.Contains(sent[0], "1 of 3 pods are there") {
		t.Errorf("events %q", sent)
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
		p := s.add(fmt.Sprint("p", n), core, mem, edits...)
		s.readAll()
		demand, err := placement.DemandOf(podrequest.Of(p), nil)
		s.must(err)
		return scheduling.Request{Pod: p, Demand: demand}
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
				return placement.Plan{Node: node, Grants: []placement.Grant{{Container: "c", UUID: gpu(node, device), Core: core, Mem: 600}}}
			}
			half := s.ledger("n0")
			s.must(grants.Grant(half, pods[2].UID, "ns/m2", plan("n0", 60, 1), time.Time{}))
			if held {
				grants.Hold(half, "podgroups.kueue.x-k8s.io/ns/g", s.clock.Now().Add(binding.HoldFor), pods[2].UID)
			}
			s.put(half)
			if !fits {
				full := s.ledger("n1")
				for d := range 2 {
					s.must(grants.Grant(full, "other", "ns/other", plan("n1", 100, d), time.Time{}))
				}
				s.put(full)
			}
			s.readAll()
			s.work()
			now, placed := s.ledger("n0"), strings.Count(s.seats("m0", "m1", "m2"), ":")
			switch {
			case len(now.Spec.Holds) > 0:
				t.Errorf("Invariant 6: %s, fits %v: still held %+v", name, fits, now.Spec.Holds)
			case fits && (placed != 3 || len(now.Spec.Devices[0].Slices) == 0 || now.Spec.Devices[0].Slices[0].Pod != pods[2].UID):
				t.Errorf("%s: placed %d of 3; events %q; n0 has %+v", name, placed, s.newEvents(), now.Spec.Devices)
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
	s.addGang(members, 60, 600)
	const metric = "nodes_judged_sum"
	before := measured(t, metric)
	s.work()
	if judged := measured(t, metric) - before; judged < 2*devices || judged > (scheduling.MaxOrders+1)*devices {
		t.Errorf("%v nodes judged for the %d places that there are, want at most %d orders", judged, devices, scheduling.MaxOrders+1)
	}
	s.expect("m0 m1")
}
