// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/podgroups"
)

// A gang of three of which two would fit waits wholly and holds nothing; once there
// is room for all, all three run. The PodGroups' CRD is installed while the
// allocator runs.
func TestGangStartsWhole(t *testing.T) {
	install(t, podgroups.CRD())
	blocker := awaitReady(t, create(t, newPod("in-the-way").share(60, 60).on(small)))

	g := podgroups.Coscheduling(namespace, "train", 3)
	await(t, "PodGroups to be served", func() (bool, string) {
		err := sys.Client.Create(t.Context(), g.DeepCopy())
		return err == nil || apierrors.IsAlreadyExists(err), fmt.Sprint(err) // it is there, and the answer was lost
	})
	var gang []*corev1.Pod
	for i := range 3 {
		p := newPod(fmt.Sprintf("train-%d", i)).share(60, 60)
		p.Labels = map[string]string{podrequest.LabelCoscheduling: g.GetName()}
		gang = append(gang, create(t, p))
	}
	awaitEvent(t, gang[0], "PodGroup tenants/train: room for 2 of the 3 pods that must start together", "needs 60 % compute")
	for _, p := range gang {
		if now := get(t, p); len(now.Spec.SchedulingGates) != 1 {
			t.Errorf("pod %s was let go without the rest of its gang", p.Name)
		}
		for _, node := range []string{small, large} {
			if held := slicesOf(ledger(t, node), p.UID); len(held) > 0 {
				t.Errorf("Invariant 6: pod %s waits and holds %+v on %s", p.Name, held, node)
			}
		}
	}

	remove(t, blocker)
	devices := map[string]bool{}
	for _, p := range gang {
		for _, d := range placement(t, awaitReady(t, p)).Containers["main"].Devices {
			devices[d.UUID] = true
		}
	}
	if len(devices) != 3 {
		t.Errorf("Invariant 1: three shares of 60 percent are on %d GPUs", len(devices))
	}
	for _, node := range []string{small, large} {
		if holds := ledger(t, node).Spec.Holds; len(holds) > 0 {
			t.Errorf("Invariant 6: %s still holds %+v", node, holds)
		}
	}
}

// install creates an object for the time of the test.
func install(t *testing.T, obj client.Object) {
	t.Helper()
	must.Do(t, sys.Client.Create(t.Context(), obj))
	t.Cleanup(func() { must.Report(t, sys.Client.Delete(context.Background(), obj)) })
}
