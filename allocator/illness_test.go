// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// health is what the pod's condition says, empty without one.
func (s *stage) health(name string) string {
	if c := healthIn(s.get(name)); c != nil {
		return string(c.Status) + " " + c.Reason + " " + c.Message
	}
	return ""
}

// A leader that dies between the event and the condition, or at either, leaves the next one
// to say what was not said, and nothing is said twice.
func TestIllnessIsToldOnceThroughADeath(t *testing.T) {
	for request := 1; request <= 2; request++ {
		for _, arrives := range []bool{false, true} {
			s := newStage(t, 1)
			s.running("on", 60, 600)
			s.newEvents()
			left := request
			s.kill = func() (before, after bool) {
				left--
				return left == 0 && !arrives, left == 0 && arrives
			}
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[0].Healthy, st.Devices[0].Reason = false, "Xid 48" })
			s.work() // the next process begins by itself
			if s.kill = nil; left > 0 {
				t.Fatalf("not killed at request %d", request)
			}
			s.restart()
			s.work()
			if got := s.newEvents(); about(got, notify.ReasonUnhealthy) != 1 || !strings.HasPrefix(s.health("on"), "False GPUUnhealthy") {
				t.Errorf("killed at request %d, arrived %v: events %q, condition %q", request, arrives, got, s.health("on"))
			}
			// It heals and becomes unhealthy again, and once more: that is news each time.
			for _, reason := range []string{"", "Xid 48", "", "Xid 48"} {
				s.clock.Step(time.Minute)
				s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
					st.Devices[0].Healthy, st.Devices[0].Reason = reason == "", reason
				})
				s.work()
			}
			if got := s.newEvents(); len(got) != 4 {
				t.Errorf("events %q, want that it is well and unhealthy again, twice", got)
			}
		}
	}
}

// An API server that does not answer in time is waited for once a minute, for however many
// pods, and keeps no condition from being written.
func TestIllnessWhileEventsHang(t *testing.T) {
	s := newStage(t, 1)
	asked, hangs := 0, true
	s.refuseEvents = func(ctx context.Context) error {
		if asked++; hangs {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	pods := []string{"a", "b", "c"}
	for _, name := range pods {
		s.running(name, 10, 100)
	}
	for i, want := range []struct {
		health string
		asked  int
	}{{"False GPUUnhealthy", 1}, {"True GPURecovered", 1}, {"False GPUUnhealthy", 4}} {
		if i == 2 {
			hangs = false
			s.clock.Step(notify.EventPause)
		}
		s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[0].Healthy = i == 1 })
		s.work()
		for _, name := range pods {
			if got := s.health(name); !strings.HasPrefix(got, want.health) {
				t.Errorf("%d: condition of %s %q, want %s", i, name, got, want.health)
			}
		}
		if asked != want.asked {
			t.Errorf("%d: asked to take %d events, want %d", i, asked, want.asked)
		}
	}
}

// What health takes out of service and puts back leaves an operator's cordon alone, and
// the other way round.
func TestCordonAndHealthAreTwoThings(t *testing.T) {
	s := newStage(t, 1)
	s.running("on", 60, 600)
	cordon := func(uuids ...string) {
		l := s.ledger("n0")
		l.Spec.Cordons = nil
		for _, uuid := range uuids {
			l.Spec.Cordons = append(l.Spec.Cordons, v1alpha1.Cordon{UUID: uuid, By: "ann", Reason: "fans", Since: metav1.NewTime(s.clock.Now())})
		}
		s.put(l)
	}
	well := func(healthy bool) {
		s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[1].Healthy = healthy })
		s.work()
	}
	cordon("GPU-n0-1")
	well(false)
	well(true)
	s.add("next", 60, 600)
	s.work()
	s.expect("next")
	if c := s.ledger("n0").Spec.Cordon("GPU-n0-1"); c == nil || c.By != "ann" || c.Reason != "fans" {
		t.Errorf("the ledger's writes have lost or changed the cordon: %+v", c)
	}
	if s.health("on") != "" || s.get("on").Spec.NodeName == "" {
		t.Error("a pod is told of a cordon")
	}
	// It survives the allocator, and what is granted meanwhile.
	s.restart()
	s.add("small", 10, 100)
	s.work()
	if on := s.devicesOf("n0", "small"); !slices.Equal(on, []string{"GPU-n0-0"}) || s.ledger("n0").Spec.Cordon("GPU-n0-1") == nil {
		t.Errorf("placed on %s, cordons %+v", on, s.ledger("n0").Spec.Cordons)
	}
	well(false)
	cordon()
	s.work()
	s.expect("next")
	well(true)
	s.booked("next", "GPU-n0-1")
}

// Another GPU in the place of one that had slices begins empty and without its cordon;
// what the old one had is held until the node says that it is over, moves if nothing
// ran on it, and leaves no entry behind.
func TestReplacedDevice(t *testing.T) {
	s := newStage(t, 1)
	s.running("ran", 60, 600)
	s.add("stuck", 30, 300)
	s.work()
	s.bind()
	s.work()
	for _, name := range []string{"ran", "stuck"} {
		if on := s.devicesOf("n0", s.get(name).UID); !slices.Equal(on, []string{"GPU-n0-0"}) {
			t.Fatalf("%s on %s", name, on)
		}
	}
	l := s.ledger("n0")
	l.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-n0-0", Since: metav1.NewTime(s.clock.Now())}}
	s.put(l)
	s.cannotStart("stuck", "c")
	s.node("n0").ever["GPU-new"] = objects.DeviceMiB
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		st.Devices[0].UUID, st.Devices[1].Healthy = "GPU-new", false
		st.Slices = []v1alpha1.SliceStatus{{Pod: "ran", Ctr: "c", UUID: "GPU-n0-0", Container: "1", Mode: v1alpha1.ModeLimiter}}
	})
	s.work()
	s.booked("stuck", "GPU-new")
	if on := s.devicesOf("n0", "ran"); !slices.Equal(on, []string{"GPU-n0-0"}) || !strings.HasPrefix(s.health("ran"), "False GPUMissing") {
		t.Errorf("what runs is on %s, condition %q", on, s.health("ran"))
	}
	// All of the new one but what moved there: nothing of the old one's counts.
	s.add("next", 70, objects.DeviceMiB-300)
	s.work()
	s.booked("next", "GPU-new")
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		st.Slices, st.Released = nil, append(st.Released, "ran")
	})
	s.work()
	for _, d := range s.ledger("n0").Spec.Devices {
		if d.UUID == "GPU-n0-0" {
			t.Errorf("an entry of the old device is left: %+v", d)
		}
	}
	if s.ledger("n0").Spec.Cordon("GPU-n0-0") == nil {
		t.Error("the old device's cordon is gone, although it may come back")
	}
}

// A MIG instance that is ill: its pod is told, nobody else, and its place is not given
// away before the instance is.
func TestIllInstance(t *testing.T) {
	s := newStage(t, 1)
	first, second := v1alpha1.MIGPlace{Profile: 19, Start: 0, Size: 1}, v1alpha1.MIGPlace{Profile: 19, Start: 1, Size: 1}
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		d := &st.Devices[0]
		d.MIG = v1alpha1.MIGEnabled
		d.Profiles = []v1alpha1.MIGProfile{{ID: 19, Core: 14, Mem: 100, Size: 1, Starts: []int32{0, 1}, Max: 2}}
		d.Instances = []v1alpha1.MIGInstance{{MIGPlace: first, UUID: "MIG-1", Own: true}, {MIGPlace: second, UUID: "MIG-2", Own: true}}
		st.Devices[1].Healthy = false
	})
	s.running("a", 10, 100)
	s.running("b", 10, 100)
	s.newEvents()
	place := s.ledger("n0").Spec.Devices[0].Slices[0]
	if place.Pod != "a" {
		t.Fatalf("slices %+v", s.ledger("n0").Spec.Devices[0].Slices)
	}
	unhealthy := func(reason string) {
		s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
			for i := range st.Devices[0].Instances {
				if on := &st.Devices[0].Instances[i]; on.MIGPlace == *place.MIG {
					on.Reason = reason
				}
			}
		})
		s.work()
	}
	unhealthy("Xid 48")
	if got := s.newEvents(); len(got) != 1 || !strings.HasPrefix(s.health("a"), "False MIGInstanceUnhealthy the MIG instance at") || s.health("b") != "" {
		t.Errorf("events %q; a %q, b %q", got, s.health("a"), s.health("b"))
	}
	a := s.get("a")
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Released = append(st.Released, a.UID) })
	s.vanish(a)
	s.work()
	s.add("c", 10, 100)
	s.work()
	s.expect("c")
	unhealthy("")
	s.expect("c:*")
}

func healthIn(p *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.PodConditionGPUHealthy })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// running places a pod and binds it.
func (s *stage) running(name string, core v1alpha1.Percent, mem v1alpha1.MiB) {
	s.t.Helper()
	s.add(name, core, mem)
	s.work()
	s.bindNow(name)
}
