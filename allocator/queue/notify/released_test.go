// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Each pod is sent one event about all of its slices, and those of another time apart. One of a
// device that is gone is named by its UUID, and one whose time is not known has no beginning.
func TestReleased(t *testing.T) {
	n, clock, events := newNotifier(nil)
	clock.SetTime(time.Unix(7200, 0))
	at := func(s int64, pod, ctr string, mode v1alpha1.Mode) v1alpha1.Slice {
		slice := v1alpha1.Slice{Pod: named(pod).UID, Owner: "ns/" + pod, Ctr: ctr, Core: 30, Mem: 20480, Mode: mode}
		if s > 0 {
			slice.Since = &metav1.Time{Time: time.Unix(s, 0)}
		}
		return slice
	}
	l := objects.ReadyLedger("n")
	l.Spec.Devices = []v1alpha1.DeviceLedger{
		{UUID: "GPU-n-1", Slices: []v1alpha1.Slice{at(3600, "two", "a", ""), at(3600, "one", "main", ""), at(3601, "two", "c", "")}},
		{UUID: "GPU-gone", Slices: []v1alpha1.Slice{at(3600, "two", "b", v1alpha1.ModeMPS), at(0, "old", "main", "")}},
		{UUID: "GPU-n-0"},
	}
	n.Released(l)
	got := sent(events)
	slices.Sort(got)
	const amounts = "30 % compute and 20,480 MiB, "
	want := []string{
		"Normal VernierReleased had slices from 1970-01-01T01:00:00Z to 1970-01-01T02:00:00Z on node n; container a: GPU 1 (GPU-n-1), " + amounts +
			"limiter; container b: GPU-gone, " + amounts + "mps; from 1970-01-01T01:00:01Z to 1970-01-01T02:00:00Z on node n; container c: GPU 1 (GPU-n-1), " + amounts + "limiter",
		"Normal VernierReleased had slices from 1970-01-01T01:00:00Z to 1970-01-01T02:00:00Z on node n; container main: GPU 1 (GPU-n-1), " + amounts + "limiter",
		"Normal VernierReleased had slices until 1970-01-01T02:00:00Z on node n; container main: GPU-gone, " + amounts + "limiter",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for range 1000 {
		l.Spec.Devices[2].Slices = append(l.Spec.Devices[2].Slices, at(1, "big", "main", ""))
	}
	l.Spec.Devices = l.Spec.Devices[2:]
	n.Released(l)
	if got := sent(events); len(got) != 1 || len(got[0]) > eventlist.MaxNote+len("Normal VernierReleased ") {
		t.Errorf("of many slices: %d events: %.2000q", len(got), got)
	}
}

// What a pod had is no part of a handover, which reads why it waits.
func TestHandoverReadsNoReleases(t *testing.T) {
	n, _, events := newNotifier(nil)
	n.BeginHandover()
	n.Handover(t.Context(), objects.Events(func(context.Context, string) (all []corev1.Event, err error) {
		for i, reason := range []string{ReasonWaiting, ReasonReleased} {
			all = append(all, corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "p"},
				Source: corev1.EventSource{Component: Component}, Reason: reason, Message: "needs 5", LastTimestamp: metav1.Unix(int64(i), 0)})
		}
		return all, nil
	}))
	n.Waiting(named("p"), &Notices{}, ReasonWaiting, Why{Key: "short", Text: "needs 5"}, time.Time{})
	if got := sent(events); len(got) != 0 {
		t.Errorf("sent again: %q", got)
	}
}
