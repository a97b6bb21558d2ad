// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// agent is the node agent's pod.
func agent(ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "vernier-node-x", UID: "agent"},
		Spec:   corev1.PodSpec{NodeName: "n", ServiceAccountName: v1alpha1.NodeServiceAccount},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
}

func (f *fixture) reachable() *metav1.Condition {
	return meta.FindStatusCondition(f.ledger().Status.Conditions, v1alpha1.ConditionAgentReachable)
}

// Whether the agent is reachable is written when it changes, with the time, and once.
func TestReachable(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	f.Agents = &agents.Agents{}
	steps := []struct {
		name   string
		do     func()
		status metav1.ConditionStatus
		reason string
		writes int
	}{
		{"no pod", func() {}, metav1.ConditionFalse, agents.ReasonNoPod, 1},
		{"not ready", func() { f.Agents.Set(agent(corev1.ConditionFalse)) }, metav1.ConditionFalse, agents.ReasonNotReady, 2},
		{"ready", func() { f.Agents.Set(agent(corev1.ConditionTrue)) }, metav1.ConditionTrue, agents.ReasonReady, 3},
		{"gone", func() { f.Agents.Delete(agent(corev1.ConditionTrue)) }, metav1.ConditionFalse, agents.ReasonNoPod, 4},
	}
	for _, s := range steps {
		s.do()
		f.reconcile(time.Minute)
		at := f.clock.Now()
		f.reconcile(time.Minute) // nothing has changed
		c := f.reachable()
		if c == nil || c.Status != s.status || c.Reason != s.reason || f.statuses != s.writes {
			t.Errorf("%s: %+v after %d writes", s.name, c, f.statuses)
		}
		if s.name != "not ready" && !c.LastTransitionTime.Time.Equal(at) {
			t.Errorf("%s: since %v, want %v", s.name, c.LastTransitionTime, at)
		}
		if known := f.Cache.Index.Ledger("n"); known.ResourceVersion != f.ledger().ResourceVersion {
			t.Errorf("%s: the index has not what was written", s.name)
		}
	}
}

// Of an agent that has not reported there is nothing to doubt, and where another has written
// it is judged again.
func TestReachableNotWritten(t *testing.T) {
	f := newFixture(t, objects.Ledger("n"))
	f.Agents = &agents.Agents{}
	if f.reconcile(0); f.statuses != 0 {
		t.Errorf("%d writes before the agent has reported", f.statuses)
	}
	f = newFixture(t, objects.ReadyLedger("n"))
	f.Agents = &agents.Agents{}
	l := f.ledger()
	l.Labels = map[string]string{"a": "b"}
	f.must(f.api.Update(t.Context(), l))
	if err := f.Reconcile(t.Context(), "n"); !errors.Is(err, queue.ErrAgain) || f.reachable() != nil {
		t.Errorf("error %v, condition %v", err, f.reachable())
	}
	if f.reconcile(0); f.reachable() == nil {
		t.Error("not written with what was read")
	}
}

// A pod that is kept from starting by an agent that is away is replaced if it has a
// controller; else its owner is told, once.
func TestStranded(t *testing.T) {
	tests := []struct {
		name string
		edit func(*corev1.Pod)
		// after is how long the agent is away before the pod is looked at for the last time.
		after         time.Duration
		sent, deleted bool
	}{
		{"with a controller", objects.Controlled, strandedGrace, true, true},
		{"without a controller", func(*corev1.Pod) {}, strandedGrace, true, false},
		{"bound when the agent was away", func(p *corev1.Pod) {
			objects.Controlled(p)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(time.Minute))}}
		}, time.Minute + strandedGrace, true, true},
		{"it has started", func(p *corev1.Pod) { objects.Controlled(p); p.Status.ContainerStatuses[0].ContainerID = "id" }, time.Hour, false, false},
		{"not tried yet", func(p *corev1.Pod) { objects.Controlled(p); p.Status = corev1.PodStatus{} }, time.Hour, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := objects.ReadyLedger("n")
			l.Status.Conditions = append(l.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(start), Message: "no pod"})
			p := failing(bound(objects.Halves("p", "a"), l, on{"a": 0}))
			objects.Grant(l, p, on{"a": 0})
			tt.edit(p)
			f := newFixture(t, l, p)
			f.reconcile(tt.after - time.Second)
			if once, _ := f.newEvents(); f.pod("p") == nil || len(once) != 0 {
				t.Fatalf("before its time: %v, events %q", f.pod("p"), once)
			}
			if again := f.work.Later[queue.Item{Node: "n"}]; (again == time.Second) != tt.sent {
				t.Errorf("looked at again in %v", again)
			}
			f.reconcile(time.Second)
			f.reconcile(0) // the watch has not shown it
			once, _ := f.newEvents()
			if (f.pod("p") == nil) != tt.deleted || (len(once) == 1 && once[0] == notify.ReasonAgentAway) != tt.sent {
				t.Errorf("then: %v, events %q", f.pod("p"), once)
			}
			if f.device(p, "a") != first {
				t.Error("its slices were taken back: the agent has not said that nothing uses them")
			}
		})
	}
}

// Who has slices of a device that is ill is told when that begins and when it ends.
func TestHealth(t *testing.T) {
	l := objects.ReadyLedger("n")
	p, well, gated := bound(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 0}), bound(objects.Halves("well", "a"), l, on{"a": 1}), objects.Halves("gated", "a")
	objects.Grant(objects.Grant(objects.Grant(l, p, on{"a": 0, "b": 0}), well, on{"a": 1}), gated, on{"a": 0})
	f := newFixture(t, l, p, well, gated)
	device := func(healthy bool, reason string) func() {
		return func() {
			f.report(func(s *v1alpha1.SliceLedgerStatus) { s.Devices[0].Healthy, s.Devices[0].Reason = healthy, reason })
		}
	}
	ready := func(status metav1.ConditionStatus) {
		f.report(func(s *v1alpha1.SliceLedgerStatus) { s.Conditions[0].Status = status })
	}
	steps := []struct {
		name string
		do   func()
		// status is the condition's, empty for none. events are those so far.
		status corev1.ConditionStatus
		text   string
		events []string
		writes int
	}{
		{"never unhealthy", func() {}, "", "", nil, 0},
		{"unhealthy", device(false, "XID 79"), corev1.ConditionFalse, "XID 79", []string{notify.ReasonUnhealthy}, 1},
		{"unhealthy in other words", device(false, "XID 48"), corev1.ConditionFalse, "XID 48", []string{notify.ReasonUnhealthy}, 2},
		{"the node is not ready", func() {
			device(true, "")()
			ready(metav1.ConditionFalse)
		}, corev1.ConditionFalse, "XID 48", []string{notify.ReasonUnhealthy}, 2},
		{"well again", func() { ready(metav1.ConditionTrue) }, corev1.ConditionTrue, "healthy again", []string{notify.ReasonRecovered, notify.ReasonUnhealthy}, 3},
		{"gone", func() { f.report(func(s *v1alpha1.SliceLedgerStatus) { s.Devices = s.Devices[1:] }) }, corev1.ConditionFalse, "node n does not see GPU-n-0",
			[]string{notify.ReasonRecovered, notify.ReasonUnhealthy, notify.ReasonUnhealthy}, 4},
	}
	since := start
	for _, s := range steps {
		if before := conditionOf(f.pod("p"), v1alpha1.PodConditionGPUHealthy); before == nil || before.Status != s.status {
			since = f.clock.Now().Add(time.Minute)
		}
		s.do()
		f.reconcile(time.Minute)
		f.reconcile(time.Minute) // nothing has changed
		var status corev1.ConditionStatus
		var text string
		if c := conditionOf(f.pod("p"), v1alpha1.PodConditionGPUHealthy); c != nil {
			if status, text = c.Status, c.Message; !c.LastTransitionTime.Time.Equal(since) {
				t.Errorf("%s: since %v, want %v", s.name, c.LastTransitionTime, since)
			}
		}
		once, _ := f.newEvents()
		if slices.Sort(once); status != s.status || !strings.Contains(text, s.text) || strings.Count(text, "XID") > 1 || !slices.Equal(once, s.events) || f.conditions != s.writes {
			t.Errorf("%s: condition %q %q, events %q, %d writes; want %q, %q, %d", s.name, status, text, once, f.conditions, s.status, s.events, s.writes)
		}
	}
	if conditionOf(f.pod("well"), v1alpha1.PodConditionGPUHealthy) != nil || conditionOf(f.pod("gated"), v1alpha1.PodConditionGPUHealthy) != nil {
		t.Error("a pod has the condition that was never concerned")
	}
}

// A pod that requires a topology is told when its devices no longer have it, and when they have
// it again. One that only prefers it is not.
func TestTopologyLost(t *testing.T) {
	l := objects.ReadyLedger("n")
	l.Status.Topology = &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1"}}
	requires, prefers := bound(objects.Halves("requires", "a", "b"), l, on{"a": 0, "b": 1}), bound(objects.Halves("prefers", "a", "b"), l, on{"a": 0, "b": 1})
	requires.Annotations[v1alpha1.AnnotationTopology], prefers.Annotations[v1alpha1.AnnotationTopology] = "nvlink:required", "nvlink"
	objects.Grant(objects.Grant(l, requires, on{"a": 0, "b": 1}), prefers, on{"a": 0, "b": 1})
	f := newFixture(t, l, requires, prefers)
	for _, s := range []struct {
		name   string
		sets   []v1alpha1.DeviceSet
		status corev1.ConditionStatus
		says   string
	}{
		{"linked", []v1alpha1.DeviceSet{"0-1"}, "", ""},
		{"a link is down", nil, corev1.ConditionFalse, "it requires GPUs linked to each other by NVLink"},
		{"linked again", []v1alpha1.DeviceSet{"0-1"}, corev1.ConditionTrue, "healthy again"},
	} {
		f.report(func(status *v1alpha1.SliceLedgerStatus) { status.Topology.NVLink = s.sets })
		f.reconcile(time.Minute)
		var status corev1.ConditionStatus
		var text string
		if c := conditionOf(f.pod("requires"), v1alpha1.PodConditionGPUHealthy); c != nil {
			status, text = c.Status, c.Message
		}
		if status != s.status || !strings.Contains(text, s.says) {
			t.Errorf("%s: condition %q %q", s.name, status, text)
		}
	}
	if c := conditionOf(f.pod("prefers"), v1alpha1.PodConditionGPUHealthy); c != nil {
		t.Errorf("one that prefers it: %+v", c)
	}
}
