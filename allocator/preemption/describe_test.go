// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/view"
)

// there are pods that have not gone.
type there map[types.UID]bool

func (t there) PodOf(uid types.UID) *corev1.Pod {
	if !t[uid] {
		return nil
	}
	return &corev1.Pod{}
}

// The page and kubectl vernier read what a pod is told.
func TestDescribeIsRead(t *testing.T) {
	now := time.Unix(1000, 0)
	plan := func(node string, gpus ...int32) placement.Plan {
		p := placement.Plan{Node: node}
		for _, index := range gpus {
			p.Grants = append(p.Grants, placement.Grant{Index: index})
		}
		return p
	}
	r := &reservation.Reservation{
		Owner: queue.Item{Pod: types.NamespacedName{Namespace: "ns", Name: "whole"}}, End: now.Add(40 * time.Second),
		Plans:   []placement.Plan{plan("m", 3), plan("n.example", 1, 0, 1)},
		Leaving: map[types.UID]types.NamespacedName{"a": {Namespace: "ns", Name: "a"}, "b": {Namespace: "other", Name: "b"}},
	}
	on := []view.GPUOf{{Node: "m", Index: 3}, {Node: "n.example", Index: 0}, {Node: "n.example", Index: 1}}
	for _, tt := range []struct {
		pods  there
		until bool
	}{
		{there{"a": true, "b": true}, true}, {there{"a": true}, true}, {there{"b": true}, true}, {there{}, false},
	} {
		text := Describe(r, tt.pods, now)
		got := view.ReservedOf(&corev1.Event{Message: text, LastTimestamp: metav1.NewTime(now)})
		if !slices.Equal(got.GPUs(), on) || (got.Until != nil) != tt.until || tt.until && !got.Until.Time.Equal(r.End) {
			t.Errorf("%q is read as on %v, until %v", text, got.GPUs(), got.Until)
		}
	}
}
