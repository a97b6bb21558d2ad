// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	model "vernier.dev/vernier/allocator/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// because is an event of the allocator.
func because(e *corev1.Event, reason string) *corev1.Event {
	e.Reason, e.Type = reason, corev1.EventTypeNormal
	return e
}

// The last word on the room that is kept for a pod is said beside why it waits, whichever came
// later, and so is that a pod is evicted.
func TestWhyOfReservedRoom(t *testing.T) {
	// It has room, on GPU 0 of gpu-1.
	thief := gated("team-a", "thief", time.Minute, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`)
	r := fakeClient(t, append(fixture(), thief, because(event("room", "big", 15*time.Second, eventSource, "reserved on node gpu-1 GPU 0, waits for pods a to end"), model.ReasonReserved))...)
	if out, _, err := run(t, r, "why thief -n team-a"); !strings.Contains(out, "there is room: it is reserved for big, or") || err != nil {
		t.Errorf("why another does not start: %q, error %v", out, err)
	}
	const where = "reserved on node gpu-7 GPU 3, waits for pods a, b to end"
	evicted := gated("team-a", "evicted", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`)
	evicted.Spec.SchedulingGates, evicted.Spec.NodeName, evicted.Status.Phase = nil, "gpu-7", corev1.PodRunning
	evicted.Annotations[v1alpha1.AnnotationPlacement] = `{"version":"v1alpha1","node":"gpu-7","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-a","core":10,"memMiB":10}]}}}`
	evicted.Finalizers, evicted.DeletionTimestamp = []string{"example.com/finalized"}, &metav1.Time{Time: now}
	queued := gated("team-a", "queued", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`, "example.com/quota")
	r = fakeClient(t,
		gated("team-a", "big", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":100,"memMiB":1}}}`), queued, evicted,
		event("waits", "big", 5*time.Second, eventSource, "needs 100 % compute"),
		because(event("first", "big", time.Minute, eventSource, "reserved on node gpu-1 GPU 0, about 2m0s"), model.ReasonReserved),
		because(event("room", "big", 15*time.Second, eventSource, "ends pods of lower priority: "+where+", about 40s"), model.ReasonPreempting),
		because(event("room", "queued", 15*time.Second, eventSource, where), model.ReasonReserved),
		because(event("room", "evicted", 15*time.Second, eventSource, "evicted from node gpu-7: its slices go to pod team-a/big, which has a higher priority (10)"), model.ReasonPreempted),
	)
	for of, want := range map[string]string{
		"why big -n team-a": "Pod team-a/big: it waits for a place\nThe allocator's last event: needs 100 % compute\n" +
			"Room for it, as said 15s ago: ends pods of lower priority: " + where + ", about 25s from now\n",
		"why queued -n team-a":  "Pod team-a/queued: it waits for other gates first: example.com/quota\n",
		"why evicted -n team-a": "Pod team-a/evicted: it is evicted from node gpu-7: its slices go to pod team-a/big, which has a higher priority (10)\n",
	} {
		if out, errOut, err := run(t, r, of); strings.TrimSpace(out) != strings.TrimSpace(want) || errOut != "" || err != nil {
			t.Errorf("%s: %q, stderr %q, error %v, want %q", of, out, errOut, err, want)
		}
	}
	for of, want := range map[string]string{
		"waiting -n team-a":         where + ", about 25s from now",
		"waiting -n team-a -o wide": "15s ago",
		"waiting -n team-a -o json": `"until": "` + now.Add(25*time.Second).UTC().Format(time.RFC3339) + `"`,
	} {
		if out, _, err := run(t, r, of); !strings.Contains(strings.Join(strings.Fields(out), " "), want) || strings.Contains(out, "gpu-1") || err != nil {
			t.Errorf("%s: %q, error %v, want %q", of, out, err, want)
		}
	}
}
