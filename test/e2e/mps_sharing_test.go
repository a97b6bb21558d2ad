// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// A device has slices in mode mps or in other modes, never both, and changes from one to
// the other only when it is empty. Nobody is put beside: the allocator doesn't plan it,
// the API server refuses it to whoever writes it all the same, and a pod is told why it
// waits.
func TestMPSKeepsToItself(t *testing.T) {
	limited := awaitReady(t, create(t, newPod("beside-limited").share(10, 10).on(small)))
	waiting := create(t, mpsClient("beside-mps", small, 10, 1024))
	awaitEvent(t, waiting, "takes no slices in mode mps: it has others")
	if ledger(t, small).Status.Devices[0].MPS || len(daemons(t, small)) != 0 {
		t.Error("a device with a slice under the limiter is MPS'")
	}

	// Whoever writes the ledger.
	err := changeLedger(t, small, func(l *v1alpha1.SliceLedger) {
		slice := l.Spec.Devices[0].Slices[0]
		slice.Pod, slice.Mode = "forged", v1alpha1.ModeMPS
		l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, slice)
	})
	if err == nil || !strings.Contains(err.Error(), "in mode mps or in other modes, not both") {
		t.Errorf("a slice in mode mps beside another: %v", err)
	}

	// Empty, it changes, and the others wait in their turn.
	remove(t, limited)
	awaitReady(t, waiting)
	awaitShared(t, small)
	next := create(t, newPod("beside-next").share(10, 10).on(small))
	awaitEvent(t, next, "is shared by MPS, which takes no slices of other modes")
	remove(t, waiting)
	awaitReady(t, next)
	if len(daemons(t, small)) != 0 {
		t.Error("the device has a daemon after its last slice in that mode")
	}
	awaitGone(t, small)

	// On two devices each kind has its own, and a device in MIG mode takes none.
	pair := []*corev1.Pod{
		awaitReady(t, create(t, newPod("apart-limited").share(10, 10).on(large))),
		awaitReady(t, create(t, mpsClient("apart-mps", large, 10, 1024))),
		awaitReady(t, create(t, newPod("apart-limited-2").share(10, 10).on(large))),
		awaitReady(t, create(t, mpsClient("apart-mps-2", large, 10, 1024))),
	}
	var on []string
	for _, p := range pair {
		on = append(on, placement(t, get(t, p)).Containers["main"].Devices[0].UUID)
	}
	if on[0] != on[2] || on[1] != on[3] || on[0] == on[1] {
		t.Errorf("limited, mps, limited and mps are on %q", on)
	}
	onMIG := mpsClient("beside-mig", cut, 10, 1024)
	onMIG.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
	awaitEvent(t, create(t, onMIG), "VernierWaiting", "takes no slices in mode mps")
	for _, p := range pair {
		remove(t, p)
	}
	awaitGone(t, large)
	awaitGone(t, cut)
}
