// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// schedulerInTest decides on nodes n0, n1, … with two devices each.
type schedulerInTest struct {
	*Scheduler
	t *testing.T
}

func newScheduler(t *testing.T, nodes int) *schedulerInTest {
	t.Helper()
	filters := objects.Filters(t.Context(), t)
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	known := cache.New(filters, nil, logr.Discard())
	events := &notify.Notifier{Events: &record.FakeRecorder{}, Clock: clock, Log: logr.Discard()}
	q := queue.New(known, gang.New(&podgroup.Sizes{}), events, filters.Undecided, clock, logr.Discard())
	s := &schedulerInTest{&Scheduler{Cache: known, Queue: q, Filters: filters, Clock: clock, Log: logr.Discard()}, t}
	s.Lead()
	for i := range nodes {
		node := objects.Node(fmt.Sprint("n", i))
		filters.SetNode(node)
		s.set(objects.ReadyLedger(node.Name))
	}
	return s
}

// set has the cache know a newer version of a ledger.
func (s *schedulerInTest) set(l *v1alpha1.SliceLedger) {
	version, _ := strconv.Atoi(l.ResourceVersion)
	l.ResourceVersion = strconv.Itoa(version + 1)
	s.Cache.SetLedger(l)
}

// use grants a part of a device's compute to some pod.
func (s *schedulerInTest) use(node string, device int, core v1alpha1.Percent) {
	l := s.Cache.Index.Ledger(node).DeepCopy()
	uuid := l.Status.Devices[device].UUID
	l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB,
		Slices: []v1alpha1.Slice{{Pod: types.UID("on-" + uuid), Owner: "ns/on-" + uuid, Ctr: "c", Core: core, Mem: 10}}})
	s.set(l)
}

// request has the cache know of a pod, and is what it asks for.
func (s *schedulerInTest) request(name string, core v1alpha1.Percent, mem v1alpha1.MiB, edits ...func(*corev1.Pod)) Request {
	s.t.Helper()
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(core, mem)})
	p.UID, p.ResourceVersion = types.UID(name), "1"
	for _, e := range edits {
		e(p)
	}
	s.Cache.SetPod(p)
	demand, err := placement.DemandOf(podrequest.Of(p), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return Request{p, demand}
}

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

// A pod goes where there are devices and where the scheduler takes it, and what was decided
// leaves no trace: the filters count nothing, and the room is as it was.
func TestSchedule(t *testing.T) {
	s := newScheduler(t, 2)
	onto := func(node string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
	}
	for range 2 {
		for name, tt := range map[string]struct {
			pod       Request
			node, why string
			refused   bool
		}{
			"chosen by its selector": {s.request("a", 60, 600, onto("n1"), cpu("40")), "n1", "", false},
			"larger than any device": {s.request("b", 60, 1001), "", "short of c", false},
			"more CPU than any node": {s.request("c", 60, 600, onto("n0"), cpu("65")), "", "refused Insufficient cpu, node(s) didn't match node selector ", true},
		} {
			chosen, why, err := s.Schedule(t.Context(), tt.pod)
			switch {
			case err != nil:
				t.Fatal(err)
			case tt.node != "" && (chosen == nil || chosen.Plan.Node != tt.node || chosen.Ledger != s.Cache.Index.Ledger(tt.node)):
				t.Errorf("%s: chose %+v, %v", name, chosen, why)
			case tt.node == "" && (why == nil || why.Key() != tt.why || why.Refused > 0 != tt.refused):
				t.Errorf("%s: %v, cause %q", name, why, why.Cause())
			}
		}
	}
}

// Members of a gang are chosen for beside each other, or not at all; and none is counted where
// it was only tried.
func TestScheduleGang(t *testing.T) {
	s := newScheduler(t, 2)
	var gang []Request
	for i := range 5 {
		gang = append(gang, s.request(fmt.Sprint("m", i), 60, 100, cpu("30")))
	}
	if chosen, miss, err := s.ScheduleGang(t.Context(), podrequest.Group{Name: "g"}, gang, 5, Within{}); err != nil || miss == nil || miss.Fits != 4 || chosen != nil {
		t.Errorf("five on four devices: %v, %+v, %v", chosen, miss, err)
	}
	chosen, miss, err := s.ScheduleGang(t.Context(), podrequest.Group{Name: "g"}, gang, 4, Within{})
	if err != nil || miss != nil || len(chosen) != 4 {
		t.Fatalf("four of five on four devices: %v, %+v, %v", chosen, miss, err)
	}
	on := map[string]bool{}
	for _, c := range chosen {
		on[c.Plan.Grants[0].UUID] = true
	}
	if len(on) != 4 {
		t.Errorf("on devices %v, want four", on)
	}
	if !s.NeverFits(gang, 5, Within{}) || s.NeverFits(gang, 4, Within{}) {
		t.Error("five never fit, and four do")
	}
}
