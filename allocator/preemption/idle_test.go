// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// onIdle has an idle slice with so many hundredths of a device's memory, and the highest priority.
func onIdle(name string, percent v1alpha1.MiB, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.IdleShare(50, percent*objects.DeviceMiB/100)})
	p.Spec.Priority = ptr.To[int32](1_000_000)
	for _, e := range edits {
		e(p)
	}
	return p
}

// leaving are the pods whose slices are being taken back.
func (f *fixture) leavingOn(node string) (pods []string) {
	for _, d := range f.known.Index.Ledger(node).Spec.Devices {
		for _, s := range d.Slices {
			if s.Leaving {
				pods = append(pods, string(s.Pod))
			}
		}
	}
	slices.Sort(pods)
	return pods
}

// Idle slices make room for every pod that wants their memory, whatever its priority and policy and theirs,
// and whatever their budgets say. They are taken back before they are evicted. Nobody is evicted for
// one.
func TestPreemptIdleSlices(t *testing.T) {
	never := func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }
	lowest := func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](-2_000_000_000) }
	guarded := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "guarded"} }
	for name, tt := range map[string]struct {
		policy Policy
		on     [2][]*corev1.Pod
		pod    *corev1.Pod
		want   []string
	}{
		"one of a higher priority":     {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 10), onIdle("i", 50)}, {holder("b", 50, 10)}}, holder("p", 40, 10), nil},
		"one that fills the device":    {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 10), onIdle("i", 50)}, {holder("b", 90, 10)}}, holder("p", 40, 10), []string{"i"}},
		"rather than a lower priority": {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 10), onIdle("i", 50)}, {holder("b", 90, 1)}}, holder("p", 40, 10), []string{"i"}},
		"for the lowest priority":      {LowerPriority, [2][]*corev1.Pod{{onIdle("i", 90)}, {holder("b", 90, 10)}}, holder("p", 40, 10, lowest), []string{"i"}},
		"for one that never preempts":  {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 1), onIdle("i", 50)}, {holder("b", 90, 1)}}, holder("p", 40, 10, never), []string{"i"}},
		"where nobody is preempted":    {Never, [2][]*corev1.Pod{{holder("a", 50, 1), onIdle("i", 50)}, {holder("b", 90, 1)}}, holder("p", 40, 10), []string{"i"}},
		"nor is anybody else then":     {Never, [2][]*corev1.Pod{{holder("a", 90, 1), onIdle("i", 10)}, {holder("b", 90, 1)}}, holder("p", 40, 10), nil},
		"whatever its budget says":     {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 10), onIdle("i", 50, guarded)}, {holder("b", 90, 10)}}, holder("p", 40, 10), []string{"i"}},
		"as few as will do":            {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 10), onIdle("i", 10), onIdle("j", 40)}, {holder("b", 90, 10)}}, holder("p", 40, 10), []string{"j"}},
		"where memory is lent":         {LowerPriority, [2][]*corev1.Pod{{holder("a", 90, 10), onIdle("i", 50)}, {holder("b", 95, 10)}}, holder("p", 10, 10), []string{"i"}},
		"what is lent is not enough":   {LowerPriority, [2][]*corev1.Pod{{holder("a", 50, 10), onIdle("i", 30), onIdle("j", 40)}, {holder("b", 95, 10)}}, holder("p", 30, 10), []string{"i", "j"}},
		"not for an idle slice":        {LowerPriority, [2][]*corev1.Pod{{onIdle("i", 90)}, {holder("b", 90, 1)}}, onIdle("p", 40), nil},
	} {
		t.Run(name, func(t *testing.T) {
			budget := objects.Budget("none", "guarded", 0)
			f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget}, &podgroup.Sizes{}, "n")
			f.policy = tt.policy
			f.refuse = func(pod string, _ bool) error {
				if leaves := f.leavingOn("n"); !slices.Contains(leaves, pod) && slices.Contains([]string{"i", "j"}, pod) {
					t.Errorf("%s is evicted before its slice is taken back", pod)
				}
				return nil
			}
			for device, pods := range tt.on {
				for _, p := range pods {
					f.run(p, "n", device)
				}
			}
			w := f.waiter(tt.pod)
			evicted := f.preempt(w)
			if fmt.Sprint(evicted) != fmt.Sprint(tt.want) || fmt.Sprint(f.leavingOn("n")) != fmt.Sprint(tt.want) || len(f.dry) > 0 {
				t.Errorf("evicted %v, taken back %v, dry runs %v; want %v", evicted, f.leavingOn("n"), f.dry, tt.want)
			}
			for _, p := range tt.want {
				if f.graces[p] != 1 {
					t.Errorf("%s is evicted with a grace of %d s, want 1", p, f.graces[p])
				}
			}
		})
	}
}

// A budget may forbid the eviction: the slice is taken back all the same, its room stays reserved, and
// the eviction is tried again.
func TestPreemptIdleSlices_BudgetForbids(t *testing.T) {
	f := newFixture(t, "n")
	f.refuse = func(string, bool) error { return apierrors.NewTooManyRequests("the budget is used up", 10) }
	f.run(onIdle("i", 90), "n", 0)
	f.run(holder("b", 90, 10), "n", 1)
	w := f.waiter(holder("p", 40, 10))
	if got := f.preempt(w); len(got) > 0 || fmt.Sprint(f.leavingOn("n")) != "[i]" {
		t.Errorf("evicted %v, taken back %v", got, f.leavingOn("n"))
	}
	if got := f.reserved(w); got == "" {
		t.Error("nothing is reserved")
	}
	f.refuse = nil
	f.clock.Step(EvictAgain)
	if got := fmt.Sprint(f.preempt(w)); got != "[i]" {
		t.Errorf("evicted %s, want i", got)
	}
}

// A pod of the same name as one for which others made room before does not wait for having asked.
func TestPreempt_Namesake(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("b", 90, 10), "n", 1)
	for _, idle := range []string{"i", "j"} {
		i := f.run(onIdle(idle, 90), "n", 0)
		w := f.waiter(holder("p", 40, 10))
		if got := fmt.Sprint(f.preempt(w)); got != "["+idle+"]" {
			t.Errorf("evicted %s, want %s", got, idle)
		}
		for _, p := range []*corev1.Pod{i, w.Pods[0].Pod} {
			f.gone(p, "n")
			f.Forget(p)
		}
	}
}
