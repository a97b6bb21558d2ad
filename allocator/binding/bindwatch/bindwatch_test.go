// SPDX-License-Identifier: Apache-2.0

package bindwatch

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/test/objects"
)

// Its controller makes a refused pod again; its deletion takes the slices back.
func TestRefusedPodWithController(t *testing.T) {
	f := newFixture(t, refused, objects.Controlled)
	f.check(0)
	f.again("at first", RefusedGrace)
	f.check(RefusedGrace - time.Second)
	f.want("within the grace", true, true, 0)
	f.again("within the grace", time.Second)
	f.check(time.Second)
	f.want("after it", false, true, 1)
}

// One that the watch does not show as bound yet stays.
func TestRefusedPodThatWasBound(t *testing.T) {
	f := newFixture(t, refused, objects.Controlled)
	f.check(0)
	f.status(false, accepted)
	f.check(RefusedGrace)
	f.want("bound since", true, true, 1)
}

// A refused pod without a controller is its owner's to delete, and keeps its slices for long.
func TestRefusedPodWithoutController(t *testing.T) {
	f := newFixture(t, refused)
	f.check(0)
	f.check(RefusedGrace)
	f.want("after the grace", true, true, 1)
	f.again("after the grace", RefusedHold-RefusedGrace)
	f.check(RefusedHold - RefusedGrace - time.Second)
	f.want("before its time", true, true, 0)
	f.status(false, accepted)
	f.check(time.Second)
	f.want("bound since", true, true, 0)
	f.status(true, refused)
	f.check(0)
	f.want("at its time", true, false, 2)
	f.check(RefusedHold)
	f.want("long after", true, false, 0)
}

// A refusal counts from its beginning.
func TestRefusedAgain(t *testing.T) {
	f := newFixture(t, refused, objects.Controlled)
	f.check(0)
	f.status(true, accepted)
	f.check(RefusedGrace - time.Second)
	f.status(true, refused)
	f.check(time.Second)
	f.want("refused for the second time", true, true, 0)
	f.again("refused for the second time", RefusedGrace)
	f.check(RefusedGrace)
	f.want("after the grace", false, true, 1)
}

// A pod that no scheduler looks at keeps its slices for long, and not for ever; its owner is told.
func TestUnclaimed(t *testing.T) {
	for name, has := range map[string]struct {
		edit func(*corev1.Pod)
		pod  bool
	}{"with a controller": {objects.Controlled, false}, "without": {func(*corev1.Pod) {}, true}} {
		f := newFixture(t, unclaimed, has.edit)
		f.check(0)
		f.again(name, RefusedGrace)
		f.want(name+", at first", true, true, 0)
		f.check(RefusedGrace)
		if sent := f.newEvents(); len(sent) != 1 || !strings.Contains(sent[0], notify.ReasonIgnored) || !strings.Contains(sent[0], `"another"`) {
			t.Errorf("%s: events %q", name, sent)
		}
		f.again(name, RefusedHold-RefusedGrace)
		f.check(RefusedHold - RefusedGrace - time.Second)
		f.want(name+", before its time", true, true, 0)
		f.check(time.Second)
		if sent := f.newEvents(); len(sent) == 0 || !strings.Contains(sent[len(sent)-1], "the scheduler has not bound it") {
			t.Errorf("%s: events %q", name, sent)
		}
		f.want(name+", at its time", has.pod, !has.pod, 0)
	}
}

// Nothing is said of a scheduler that has looked at the pod and has not refused it, nor of a pod
// that is over; of one that shows what it showed at the gate it is.
func TestUnclaimed_WhenItHasACondition(t *testing.T) {
	for reason, events := range map[string]int{corev1.PodReasonSchedulingGated: 1, corev1.PodReasonSchedulerError: 1, "Undetermined": 0, "over": 0} {
		f := newFixture(t, unclaimed, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}
			if reason == "over" {
				p.Status.Phase = corev1.PodFailed
			}
		})
		f.check(0)
		f.check(RefusedGrace)
		f.want(reason, true, true, events)
	}
}

// One that a scheduler refuses in the end has the grace of a refused one.
func TestUnclaimedThenRefused(t *testing.T) {
	f := newFixture(t, unclaimed, objects.Controlled)
	f.check(0)
	f.check(RefusedGrace)
	f.newEvents()
	f.status(true, refused)
	f.check(0)
	f.want("refused in the end", true, true, 0)
	f.check(RefusedGrace)
	f.want("refused for the grace", false, true, 1)
}

// A volume whose provisioner never comes is named, and holds no slices for ever: neither while
// the scheduler waits for it, when the pod is nominated, nor when it gives up for a moment.
func TestVolumeThatNeverComes(t *testing.T) {
	nominated := func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" }
	f := newFixture(t, nominated)
	f.claims = "PersistentVolumeClaim data is not bound (StorageClass slow, provisioner nobody)"
	f.check(0)
	f.check(RefusedGrace)
	if sent := f.newEvents(); len(sent) != 1 || !strings.Contains(sent[0], f.claims) || !strings.Contains(sent[0], "placed on node n") {
		t.Errorf("events %q", sent)
	}
	f.status(true, func(p *corev1.Pod) {
		p.Status.NominatedNodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulerError}}
	})
	f.check(time.Second)
	f.status(true, nominated)
	f.check(RefusedHold - RefusedGrace - 2*time.Second)
	f.want("before its time", true, true, 0)
	f.check(time.Second)
	if sent := f.newEvents(); len(sent) == 0 || !strings.Contains(sent[len(sent)-1], f.claims) || !strings.Contains(sent[len(sent)-1], "given back") {
		t.Errorf("events %q", sent)
	}
	f.want("at its time", true, false, 0)
}

// A deletion that comes to nothing, as where the watch is behind, is tried again.
func TestDeletionConflicts(t *testing.T) {
	f := newFixture(t, unclaimed, objects.Controlled)
	f.check(0)
	f.check(RefusedHold - time.Second)
	f.status(false, func(p *corev1.Pod) { p.Status.Message = "not seen yet" })
	f.check(time.Second)
	if f.live() == nil {
		t.Fatal("deleted as it was not seen")
	}
	f.again("after a conflict", RefusedGrace)
	f.handlers.SetPod(f.live())
	f.check(RefusedGrace)
	if f.live() != nil {
		t.Error("not deleted as it was seen")
	}
}

// A failure of the scheduler's is a refusal.
func TestSchedulerError(t *testing.T) {
	f := newFixture(t, objects.Controlled, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulerError}}
	})
	f.check(0)
	f.check(RefusedGrace)
	f.want("after the grace", false, true, 1)
}

// A pod that waits for the pods that it preempts is not given up, however long they take to end;
// when the scheduler withdraws the nomination its time begins.
func TestPreempting(t *testing.T) {
	f := newFixture(t, refused, objects.Controlled, func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" })
	f.check(0)
	f.check(2 * RefusedHold)
	f.want("after long", true, true, 0)
	f.status(true, func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
	f.check(0)
	f.check(RefusedGrace - time.Second)
	f.want("not nominated any more", true, true, 0)
	f.check(time.Second)
	f.want("not nominated for the grace", false, true, 1)
}

// Of a pod that is gone nothing is noted, whatever was seen of it last.
func TestForget(t *testing.T) {
	f := newFixture(t, refused)
	last := f.cache.Pod(item.Pod)
	f.check(0)
	if len(f.refusals) != 1 {
		t.Fatalf("refusals: %v", f.refusals)
	}
	f.handlers.DeletePod(last, true)
	if len(f.refusals) != 0 {
		t.Errorf("after it is gone: %v", f.refusals)
	}
	f.must(f.Check(t.Context(), last))
	f.clock.Step(RefusedHold)
	f.must(f.Check(t.Context(), last))
	if len(f.refusals) != 0 {
		t.Errorf("after a late look: %v", f.refusals)
	}
}

// The ledgers are looked at that hold slices of the pod elsewhere, or with which it cannot
// start.
func TestLedgersAreLookedAt(t *testing.T) {
	tests := []struct {
		name string
		edit func(*corev1.Pod)
		want bool
	}{
		{"where it is placed", func(*corev1.Pod) {}, false},
		{"bound elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "m" }, true},
		{"cannot start", func(p *corev1.Pod) {
			p.Spec.NodeName = "n"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}}}
		}, true},
	}
	for _, tt := range tests {
		f := newFixture(t, tt.edit)
		if f.check(0); f.work.Due[queue.Item{Node: "n"}] != tt.want {
			t.Errorf("%s: looked at are %v", tt.name, f.work.Due)
		}
	}
}
