// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// newBarredStage has two pods of 60 % under a budget that allows no eviction, and a third of higher
// priority that waits.
func newBarredStage(t *testing.T) *stage {
	t.Helper()
	b := objects.Budget("keep", "x", 0)
	b.Status.CurrentHealthy, b.Status.DesiredHealthy = 1, 2
	s := newStage(t, 1, budgeted(b))
	for _, name := range []string{"low0", "low1"} {
		s.add(name, 60, 600, objects.Labelled("x"), finalized)
	}
	s.work()
	s.newEvents()
	s.add("high", 60, 600, objects.Priority(10))
	s.work()
	s.evicts()
	return s
}

// allow has the budget allow so many evictions, as the API server and the filters have it.
func (s *stage) allow(evictions int32) (was, is *policyv1.PodDisruptionBudget) {
	known := s.known("keep")
	was = known.DeepCopy()
	known.Status.DisruptionsAllowed, known.ResourceVersion = evictions, "2"
	s.budgets[0].Status.DisruptionsAllowed = evictions
	return was, known
}

// known is the budget that the filters have, to be changed as a watch does.
func (s *stage) known(name string) *policyv1.PodDisruptionBudget {
	s.t.Helper()
	all := s.allocator.Filters.Budgets("ns").Covering(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}}})
	at := slices.IndexFunc(all, func(b *policyv1.PodDisruptionBudget) bool { return b.Name == name })
	if at < 0 {
		s.t.Fatalf("no budget %s", name)
	}
	return all[at]
}

// A pod that waits for a budget says for which, and is looked at when that opens, whatever opens it.
// Where nobody tells it is looked at within a minute.
func TestPreemption_WhenABudgetOpens(t *testing.T) {
	const what = "1 pod(s) of lower priority would make room and cannot leave: PodDisruptionBudget keep allows 0 evictions now, needs 2 healthy pods and has 1"
	for name, open := range map[string]func(*stage){
		"its status": func(s *stage) { was, is := s.allow(1); s.allocator.Changed(was, is) },
		"its spec": func(s *stage) {
			known := s.known("keep")
			was := known.DeepCopy()
			known.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow) // its pods are not ready
			s.budgets = nil
			s.allocator.Changed(was, known)
		},
		"a victim that is not covered any more": func(s *stage) {
			p := s.get("low0")
			p.Labels = nil
			s.put(p)
		},
		"a victim that waits to start": func(s *stage) {
			s.budgets = nil // to the Eviction API it has none
			s.update("low0", func(st *corev1.PodStatus) { st.Phase = corev1.PodPending })
		},
		"the labels of its namespace": func(s *stage) {
			s.allow(1)
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
			labelled := ns.DeepCopy()
			labelled.Labels = map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}
			s.allocator.Changed(ns, labelled)
		},
		"unnoticed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newBarredStage(t)
			s.says(what)
			after := preemption.EvictAgain
			if open == nil {
				s.allow(1)
				after = queue.FlushAfter
			} else {
				open(s)
			}
			s.work()
			if s.pass(after); len(s.evicted) != 1 {
				t.Fatalf("evicted %v, want one", s.evicted)
			}
			p := s.find(s.evicted[0])
			s.vanish(p)
			s.work()
			s.expect("high:*")
		})
	}
}

// A budget that changes and stays shut costs a look in EvictAgain at most.
func TestPreemption_WhenABudgetFlaps(t *testing.T) {
	s := newBarredStage(t)
	looks := 0
	s.queue.taken = func(it queue.Item) {
		if it.Pod.Name == "high" {
			looks++
		}
	}
	for range 100 {
		was, is := s.allow(0)
		s.allocator.Changed(was, is)
		s.pass(preemption.EvictAgain / 100)
	}
	if looks > 2 {
		t.Errorf("looked %d times in %v", looks, preemption.EvictAgain)
	}
}

// What a webhook refuses is not put down to a budget that is open, and is said no longer once there is
// nobody to evict.
func TestPreemption_WhenAWebhookRefuses(t *testing.T) {
	s := newBarredStage(t)
	s.newEvents()
	s.refusing("evict", "low0", "low1")
	was, is := s.allow(1)
	s.allocator.Changed(was, is)
	for range 3 {
		s.pass(preemption.RetryAfter)
	}
	sent := strings.Join(s.newEvents(), "\n")
	if !strings.Contains(sent, "the API server has refused to evict pod low") || strings.Contains(sent, "allows 1 evictions") || !strings.Contains(sent, "no patches on Fridays") {
		t.Errorf("events %q", sent)
	}
}

// Who is refused by the scheduler beside victims is looked at when a node changes.
func TestPreemption_WhenANodeOpens(t *testing.T) {
	s := newStage(t, 1)
	s.add("low", 60, 600)
	s.add("other", 60, 600, objects.Priority(100))
	s.work()
	tainted := objects.Node("n0")
	tainted.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	s.allocator.SetNode(objects.Node("n0"), tainted)
	s.add("high", 60, 600, objects.Priority(10))
	s.work()
	s.pass(queue.RefusedDelay)
	s.evicts()
	s.allocator.SetNode(tainted, objects.Node("n0"))
	s.pass(queue.RefusedDelay)
	if s.pass(preemption.RetryAfter); !slices.Equal(s.evicted, []types.UID{"low"}) {
		t.Errorf("evicted %v", s.evicted)
	}
}

// Budgets of other tenants are no affair of the pod's owner.
func TestPreemption_WhenABudgetIsOfAnotherNamespace(t *testing.T) {
	b := objects.Budget("secret", "", 0)
	b.Namespace, b.Spec.Selector = "theirs", &metav1.LabelSelector{}
	s := newStage(t, 1, budgeted(b))
	for _, name := range []string{"low0", "low1"} {
		s.add(name, 60, 600, objects.Priority(-10), objects.InNamespace("theirs"))
	}
	s.add("high", 60, 600, objects.Priority(10))
	s.work()
	sent := strings.Join(s.newEvents(), "\n")
	if strings.Contains(sent, "secret") || !strings.Contains(sent, "cannot leave: PodDisruptionBudgets of other namespaces") {
		t.Errorf("events %q", sent)
	}
}
