// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// moving is a world in which pods are moved for one that has waited for ten minutes.
func moving(w *world) {
	w.defragment = preemption.Defragment{After: 10 * time.Minute, MaxPods: 3, PerHour: 6}
}

// movable has a controller make the pod again, and allows that it is moved.
func movable(p *corev1.Pod) {
	objects.Controlled(p)
	p.Labels = map[string]string{v1alpha1.LabelMovable: v1alpha1.LabelMovableTrue}
}

// fragmented is a node with 40 % of the device 0, of a movable pod a, and 60 % of the device 1. A pod
// waits that asks for all of a device.
func fragmented(t *testing.T) *stage {
	t.Helper()
	s := newStage(t, 1, moving)
	s.add("x", 60, 600)
	s.run()
	s.add("a", 40, 400, movable, finalized)
	s.run()
	s.add("y", 60, 600)
	s.run()
	s.vanish(s.get("x"))
	s.end()
	s.booked("a", "GPU-n0-0")
	s.booked("y", "GPU-n0-1")
	s.add("whole", v1alpha1.WholeGPU, objects.DeviceMiB, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock.Now()) })
	s.work()
	return s
}

// A pod fits once another has moved. The room of both is kept from everybody else.
func TestDefragment(t *testing.T) {
	t.Parallel()
	s := fragmented(t)
	s.pass(10*time.Minute - time.Second)
	if len(s.evicted) > 0 {
		t.Fatalf("evicted %v before it was time", s.evicted)
	}
	s.pass(time.Second)
	if !slices.Equal(s.evicted, []types.UID{"a"}) {
		t.Fatalf("evicted %v, events %q", s.evicted, s.newEvents())
	}
	s.add("thief", 30, 300)
	s.work()
	s.expect("thief whole")
	s.add("a-again", 40, 400, movable)
	s.work()
	s.booked("a-again", "GPU-n0-1")
	s.end()
	s.pass(preemption.EvictAgain)
	s.booked("whole", "GPU-n0-0")
	s.expect("thief")
	if len(s.evicted) != 1 {
		t.Errorf("evicted %v", s.evicted)
	}
}

// A replica is killed at each request that moving takes, before the API server has it and after. The
// next leader evicts nobody twice, and in the end both have their places.
func TestKilledWhileMoving(t *testing.T) {
	t.Parallel()
	for _, arrives := range []bool{false, true} {
		at := 1
		for ; lifeOfMove(t, at, arrives); at++ {
		}
		// A dry run and an eviction, and the grants and patches of two pods.
		if at-1 < 5 {
			t.Errorf("only %d requests were made", at-1)
		}
	}
}

func lifeOfMove(t *testing.T, n int, arrives bool) (killed bool) {
	t.Helper()
	s := fragmented(t)
	at := s.killAt(n, arrives)
	for i := range 8 {
		if i == 6 {
			s.kill = nil
		}
		s.pass(6 * time.Minute)
		if len(s.evicted) > 0 && s.get("a-again") == nil {
			s.add("a-again", 40, 400, movable)
			s.work()
			s.end()
		}
	}
	if when := fmt.Sprintf("killed at request %d, arrived %v", n, arrives); !slices.Equal(s.evicted, []types.UID{"a"}) {
		t.Errorf("%s: evicted %v", when, s.evicted)
	} else {
		s.expect("a-again:n0 whole:n0", when)
	}
	return *at
}
