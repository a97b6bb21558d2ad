// SPDX-License-Identifier: Apache-2.0

package eventhandlers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

func newHandlers(t *testing.T) (*Handlers, queue.Work) {
	t.Helper()
	filters := objects.Filters(t.Context(), t)
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	known, groups := cache.New(filters, nil, logr.Discard()), gang.New(&podgroup.Sizes{})
	events := &notify.Notifier{Events: &record.FakeRecorder{}, Clock: clock, Log: logr.Discard()}
	q, work := queue.New(known, groups, events, filters.Undecided, clock, logr.Discard()), queue.NewWork(clock)
	t.Cleanup(work.ShutDown)
	q.Open(work)
	return &Handlers{Cache: known, Groups: groups, Queue: q, Filters: filters, Log: logr.Discard()}, work
}

func pod(name, version string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := objects.Single(name, objects.Share(10, 100), edits...)
	p.ResourceVersion = version
	return p
}

// due is what is to be looked at, in words.
func due(h *Handlers, work queue.Work) string {
	var names []string
	for work.Len() > 0 {
		items, _ := h.Queue.Pop(1)
		if it := items[0]; it.IsMove() {
			h.Queue.ActivatePending(it)
		} else {
			names = append(names, it.Pod.Name+it.Gang.Name+it.Node)
		}
		h.Queue.Done(items[0], nil)
	}
	return strings.Join(names, " ")
}

// Each update has those looked at to whom it matters, and no others.
func TestFanOut(t *testing.T) {
	h, work := newHandlers(t)
	var gone []string
	h.OnGone(func(p *corev1.Pod) {
		if h.Cache.Current(p) != nil {
			t.Errorf("%s: the cache still knows it", p.Name)
		}
		gone = append(gone, p.Name)
	})
	l := objects.ReadyLedger("n0")
	l.ResourceVersion = "1"
	waits := pod("waits", "1")
	for _, step := range []struct {
		what, due string
		do        func()
	}{
		{"a ledger", "n0", func() { h.SetLedger(l) }},
		{"a gated pod", "waits", func() { h.SetPod(waits) }},
		{"the same again", "", func() { h.SetPod(waits) }},
		{"a pod of a gang", "g", func() { h.SetPod(pod("m0", "1", objects.InGang("g", 2))) }},
		{"a pod with another gate", "", func() {
			h.SetPod(pod("away", "1", func(p *corev1.Pod) {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/other"})
			}))
		}},
		{"a plain pod", "", func() {
			h.SetPod(&corev1.Pod{ObjectMeta: objects.Node("plain").ObjectMeta, Spec: corev1.PodSpec{NodeName: "n0"}})
		}},
		{"a pod that waits for room", "", func() { h.Queue.MarkUnschedulable([]*corev1.Pod{waits}, false, notify.Why{Key: "short", Text: "why"}) }},
		{"room", "n0 waits", func() {
			more := l.DeepCopy()
			more.ResourceVersion = "2"
			more.Status.Devices = append(more.Status.Devices, v1alpha1.DeviceStatus{UUID: "GPU-n0-2", Index: 2, Minor: 2, Model: "T4", Mem: objects.DeviceMiB, Healthy: true})
			h.SetLedger(more)
		}},
		{"the end of a member", "g", func() { h.DeletePod(pod("m0", "1", objects.InGang("g", 2)), true) }},
		{"the end of one that waits", "", func() { h.DeletePod(waits, true) }},
		{"an answer to a write of it", "", func() { h.SetWritten(pod("waits", "2")) }},
	} {
		step.do()
		if got := due(h, work); got != step.due {
			t.Errorf("%s: %q is due, want %q", step.what, got, step.due)
		}
	}
	if got := fmt.Sprint(gone); got != "[m0 waits]" {
		t.Errorf("gone: %s", got)
	}
}

// A heartbeat of a node moves nothing.
func TestNodeChanged(t *testing.T) {
	old := objects.Node("n0")
	for what, tt := range map[string]struct {
		edit func(*corev1.Node)
		want bool
	}{
		"a heartbeat": {func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} }, false},
		"a cordon":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"a label":     {func(n *corev1.Node) { n.Labels["zone"] = "a" }, true},
		"less memory": {func(n *corev1.Node) { delete(n.Status.Allocatable, corev1.ResourceMemory) }, true},
	} {
		node := old.DeepCopy()
		if tt.edit(node); nodeChanged(old, node) != tt.want {
			t.Errorf("%s: %v, want %v", what, !tt.want, tt.want)
		}
	}
}
