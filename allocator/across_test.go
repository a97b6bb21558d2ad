// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// production names a PriorityClass as a tenant of namespace a may.
func production(p *corev1.Pod) {
	objects.Priority(1000)(p)
	p.Namespace, p.Spec.PriorityClassName = "a", "production"
}

// newTenantStage has one full node of tenant b, whose pod waits for all of a GPU, and tenant a, whose
// later one of an existing PriorityClass does too.
func newTenantStage(t *testing.T) *stage {
	t.Helper()
	s := newStage(t, 1, reserving, atHome)
	for _, name := range []string{"b0", "b1"} {
		s.add(name, 60, 600, s.created, objects.InNamespace("b"), finalized)
	}
	s.run()
	s.add("waits", v1alpha1.WholeGPU, 1, s.created, objects.InNamespace("b"))
	s.work()
	s.pass(time.Second)
	s.add("urgent", v1alpha1.WholeGPU, 1, s.created, production)
	s.work()
	return s
}

// allowProduction labels namespace a, and returns it before and after.
func (s *stage) allowProduction() (was, now *corev1.Namespace) {
	was = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	now = was.DeepCopy()
	now.Labels = map[string]string{v1alpha1.LabelPriorityClassPrefix + "production": v1alpha1.LabelPriorityClassEnabled}
	s.allocator.Changed(was, now)
	s.work()
	s.pass(10 * time.Second)
	return was, now
}

// A tenant that names an existing PriorityClass evicts no pod of another, has no room reserved before
// an older pod of another, and is looked at after that one. Its event says why.
func TestHostilePriorityClassOfOthers(t *testing.T) {
	s := newTenantStage(t)
	s.evicts()
	s.says("cannot leave: PriorityClass production counts for pods of namespace a only")
	s.pass(10 * time.Minute)
	all := s.allocator.reservations.All()
	if len(all) != 1 || all[0].Owner.Pod.Name != "waits" {
		t.Fatalf("reserved %+v, want for the older one", all)
	}
	s.delete("b0")
	s.end()
	s.expect("waits:* urgent")
}

// Nor does it get what another tenant's pod leaves before an older pod, nor see through what is kept
// for an older one of its own namespace, which keeps it from others.
func TestHostilePriorityClassAndRoomOfOthers(t *testing.T) {
	s := newTenantStage(t)
	s.delete("b0")
	s.work()
	s.pass(preemption.RetryAfter)
	s.reserved()
	s.end()
	s.expect("waits:* urgent")

	s = newTenantStage(t)
	s.vanish(s.get("urgent"))
	s.pass(10 * time.Minute)
	s.add("c", 40, 1, s.created, objects.InNamespace("c"))
	s.add("later", 40, 1, s.created, production, objects.InNamespace("b"))
	s.work()
	// Its own pod on the other GPU it evicts.
	all := s.allocator.reservations.All()
	if got := s.atTheGate("c", "later"); got != "later" || len(all) == 0 || all[0].Owner.Pod.Name != "waits" {
		t.Errorf("c, later wait: %v, reserved %+v", got, all)
	}
}

// What a namespace is allowed no longer keeps no room.
func TestPriorityClass_WhenItIsWithdrawn(t *testing.T) {
	s := newTenantStage(t)
	was, now := s.allowProduction()
	s.reserved("urgent")
	s.allocator.Changed(now, was)
	s.work()
	s.pass(time.Second)
	s.reserved()
}

// In its own namespace a class counts that is not allowed: its own pod of lower priority is evicted.
func TestPriorityClass_WhenItCountsAtHome(t *testing.T) {
	s := newStage(t, 1, atHome)
	s.add("b0", 60, 600, objects.InNamespace("b"), finalized)
	s.add("a0", 60, 600, objects.InNamespace("a"), finalized)
	s.run()
	s.add("urgent", v1alpha1.WholeGPU, objects.DeviceMiB, production)
	s.work()
	s.evicts("a0")
}
