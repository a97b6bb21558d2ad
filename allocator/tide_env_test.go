// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// The leader writes a tide into the ledgers of the nodes that it selects, and whether it is open into
// its status, with the rights and the policies that it has. It follows labels and specs.
func TestTideIsInLedgers(t *testing.T) {
	s := startWith(t, nil)
	s.run()
	s.addNode("n0", func(n *corev1.Node) { n.Labels["pool"] = "batch" })
	s.addNode("n1")
	tide := &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: "always"}, Spec: v1alpha1.TideSpec{
		NodeSelector: map[string]string{"pool": "batch"},
		Windows:      []v1alpha1.TideWindow{{Schedule: "0 * * * *", Duration: metav1.Duration{Duration: 2 * time.Hour}}},
		Lend:         v1alpha1.TideAmounts{Core: 80, Mem: 70},
		Reclaim:      v1alpha1.TideReclaim{Before: metav1.Duration{Duration: 10 * time.Minute}, Grace: metav1.Duration{Duration: 30 * time.Second}},
	}}
	s.must(s.Create(t.Context(), tide))
	allows := func(node string, core, mem v1alpha1.Percent) {
		t.Helper()
		s.await("the ledger of "+node, func(ctx context.Context) (bool, error) {
			l := &v1alpha1.SliceLedger{}
			err := s.Get(ctx, client.ObjectKey{Name: node}, l)
			hasCore, hasMem := l.Spec.Tide.Allows(time.Now())
			return hasCore == core && hasMem == mem && (l.Spec.Tide != nil) == (core != v1alpha1.WholeGPU), err
		})
	}
	status := func(open bool, accepted metav1.ConditionStatus) {
		t.Helper()
		s.await("the tide's status", func(ctx context.Context) (bool, error) {
			err := s.Get(ctx, client.ObjectKeyFromObject(tide), tide)
			is := meta.FindStatusCondition(tide.Status.Conditions, v1alpha1.ConditionAccepted)
			return is != nil && is.Status == accepted && is.ObservedGeneration == tide.Generation && tide.Status.Open == open && (tide.Status.Until != nil) == open, err
		})
	}
	allows("n0", 80, 70)
	allows("n1", 100, 100)
	status(true, metav1.ConditionTrue)
	node := &corev1.Node{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
	node.Labels["pool"] = "batch"
	s.must(s.Update(t.Context(), node))
	allows("n1", 80, 70)
	tide.Spec.Windows[0].TimeZone = "Mars"
	s.must(s.Update(t.Context(), tide))
	allows("n0", 0, 0)
	status(false, metav1.ConditionFalse)
	s.must(s.Delete(t.Context(), tide))
	allows("n0", 100, 100)
}
