// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
)

// of is a pod's namespace and PriorityClass.
func of(namespace, class string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace, p.Spec.PriorityClassName = namespace, class }
}

// A PriorityClass takes room from pods of other namespaces only where the operator allows it; the
// pod that waits says so.
func TestHostilePriorityClass(t *testing.T) {
	const reason = "PriorityClass production counts for pods of namespace a only"
	for name, tt := range map[string]struct {
		// on are the pods of the two devices.
		on      [2]*corev1.Pod
		allowed bool
		want    string
		barred  bool
	}{
		"others' pods stay":                                 {[2]*corev1.Pod{holder("b0", 50, 0, of("b", "")), holder("b1", 50, 0, of("b", ""))}, false, names(), true},
		"its own leave":                                     {[2]*corev1.Pod{holder("b0", 50, 0, of("b", "")), holder("a1", 50, 500, of("a", "any"))}, false, names("a1"), false},
		"what is below 0 leaves":                            {[2]*corev1.Pod{holder("b0", 50, 0, of("b", "")), holder("b1", 50, -10, of("b", "spot"))}, false, names("b1"), false},
		"the lower of its own leaves":                       {[2]*corev1.Pod{holder("a0", 50, 10, of("a", "any")), holder("a1", 50, 500, of("a", "other"))}, false, names("a0"), false},
		"allowed: others' leave":                            {[2]*corev1.Pod{holder("b0", 50, 0, of("b", "")), holder("a1", 50, 500, of("a", "any"))}, true, names("b0"), false},
		"allowed: a class that is not allowed saves nobody": {[2]*corev1.Pod{holder("b0", 50, 2000, of("b", "huge")), holder("b1", 90, 2000, of("b", "huge"))}, true, names("b0"), false},
		"allowed: its own of a higher class stay":           {[2]*corev1.Pod{holder("a0", 50, 2000, of("a", "huge")), holder("a1", 90, 2000, of("a", "huge"))}, true, names(), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "n")
			f.known.Priorities.Everywhere = nil
			for device, p := range tt.on {
				f.run(p, "n", device)
			}
			w := f.waiter(holder("p", 60, 1000, of("a", "production")))
			if tt.allowed {
				f.known.Priorities.SetNamespace("a", map[string]string{v1alpha1.LabelPriorityClassPrefix + "production": v1alpha1.LabelPriorityClassEnabled})
			}
			f.queue.MarkUnschedulable([]*corev1.Pod{w.Pods[0].Pod}, false, notify.Why{Key: "short", Text: "why"})
			if got := fmt.Sprint(f.preempt(w)); got != tt.want {
				t.Errorf("evicted %s, want %s", got, tt.want)
			}
			if text := f.newEvents(); strings.Contains(text, reason) != tt.barred {
				t.Errorf("event %q", text)
			}
		})
	}
}

// What a namespace is allowed counts from then on, without a change of any ledger.
func TestPreempt_WhenAClassIsAllowed(t *testing.T) {
	f := newFixture(t, "n")
	f.known.Priorities.Everywhere = nil
	f.run(holder("b0", 50, 0, of("b", "")), "n", 0)
	f.run(holder("b1", 50, 0, of("b", "")), "n", 1)
	w := f.waiter(holder("p", 60, 1000, of("a", "production")))
	if got := f.preempt(w); len(got) > 0 {
		t.Fatalf("evicted %v", got)
	}
	f.known.Priorities.SetNamespace("a", map[string]string{v1alpha1.LabelPriorityClassPrefix + "production": v1alpha1.LabelPriorityClassEnabled})
	f.VictimsChanged("a")
	f.clock.Step(EvictAgain)
	if got := f.preempt(w); len(got) != 1 {
		t.Errorf("evicted %v once its class is allowed", got)
	}
	f.known.Priorities.SetNamespace("a", nil)
	f.reservations.Clear()
	f.clock.Step(RetryAfter << maxRounds)
	if got := f.preempt(w); len(got) > 0 {
		t.Errorf("evicted %v once it is not allowed any more", got)
	}
}

// What victims' namespaces are allowed counts as well.
func TestPreempt_WhenAVictimsClassIsWithdrawn(t *testing.T) {
	f := newFixture(t, "n")
	f.known.Priorities.Everywhere = []string{"production"}
	f.known.Priorities.SetNamespace("b", map[string]string{v1alpha1.LabelPriorityClassPrefix + "huge": v1alpha1.LabelPriorityClassEnabled})
	f.run(holder("b0", 50, 2000, of("b", "huge")), "n", 0)
	f.run(holder("b1", 50, 2000, of("b", "huge")), "n", 1)
	f.run(holder("low", 1, 0, of("b", "")), "n", 1) // so that it is looked for victims at all
	w := f.waiter(holder("p", 60, 1000, of("a", "production")))
	if got := f.preempt(w); len(got) > 0 {
		t.Fatalf("evicted %v", got)
	}
	f.known.Priorities.SetNamespace("b", nil)
	f.clock.Step(RetryAfter)
	if got := f.preempt(w); len(got) != 1 {
		t.Errorf("evicted %v", got)
	}
}

// Nor is a pod sent where the scheduler would end pods of other namespaces for its CPUs.
func TestHostilePriorityClass_WhenCPUIsShort(t *testing.T) {
	f := newFixture(t, "n")
	f.known.Priorities.Everywhere = nil
	f.other("n", 0, "60")
	p := newPod("p", "10")
	of("a", "production")(p)
	if node, _ := f.postFilter(f.add(p)); node != "" {
		t.Errorf("sent to %s", node)
	}
	f.known.Priorities.Everywhere = []string{"production"}
	f.clock.Step(RetryAfter << maxRounds)
	if node, _ := f.postFilter(p); node != "n" {
		t.Errorf("sent to %q where its class is allowed", node)
	}
}
