// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// The sums are those of the CRD's rules: sum of (core - reuseCore) and of
// (mem - reuseMem), so that a full device shows as full and never as more.
// The capacity is the ledger's where there are grants: it is what the API server
// checks, even when the node now sees another size.
// A device that the node does not see is shown while there are grants on it, so
// that they don't vanish from the sums, and not after.
// An event's time is in whichever field its author used.
func TestBar(t *testing.T) {
	for _, c := range []struct {
		granted, total v1alpha1.MiB
		want           string
	}{
		{0, 100, "[.....]"},
		{1, 100, "[#....]"},
		{99, 100, "[####.]"},
		{100, 100, "[#####]"},
		{120, 100, "[#####]"},
		{0, 0, "[.....]"},
	} {
		if got := bar(c.granted, c.total); got != c.want {
			t.Errorf("bar(%d, %d) = %s, want %s", c.granted, c.total, got, c.want)
		}
	}
}

// Columns are as wide as they must be, counted in characters, and no cell is
// empty or longer than one line.
func TestLines(t *testing.T) {
	table := Table{header: []string{"A", "LONG", "C"}, rows: [][]string{{"größe", "", "two\nlines"}, {"x", "y", ""}}}
	head, rows := table.Lines(0, true)
	if got := slices.Concat(head, rows); !slices.Equal(got, []string{"A       LONG   C", "größe   -      two lines", "x       y      -"}) {
		t.Errorf("%q", got)
	}
	if head, rows = table.Lines(0, false); head != nil || !slices.Equal(rows, []string{"größe   -   two lines", "x       y   -"}) {
		t.Errorf("without header: %q, %q", head, rows)
	}
	if got := pieces("1 GPU(s) of CORE(%)"); !slices.Equal(got, []string{"1 ", "GPU(s) ", "of ", "CORE", "(%)"}) {
		t.Errorf("breaks between %q", got)
	}
}

// The guarantee of compute is said where it is another than that of memory, and a GPU without an index by its UUID.
func TestSliceTable(t *testing.T) {
	const driver, cooperative = v1alpha1.GuaranteeDriver, v1alpha1.GuaranteeCooperative
	for want, s := range map[string]model.Slice{
		"gpu-1/0 driver":             {GPU: new(int32), MemoryGuarantee: driver, ComputeGuarantee: driver},
		"gpu-1/0 driver/cooperative": {GPU: new(int32), MemoryGuarantee: driver, ComputeGuarantee: cooperative},
		"gpu-1/0 -/cooperative":      {GPU: new(int32), ComputeGuarantee: cooperative},
		"gpu-1/GPU-aaaa ":            {UUID: "GPU-aaaa-0001"},
	} {
		s.Node = "gpu-1"
		if row := SliceTable([]model.Slice{s}, time.Time{}, false).rows[0]; row[3]+" "+row[6] != want {
			t.Errorf("%q, want %q", row, want)
		}
	}
}

// A wide table says for how long a slice is idle.
func TestSliceTable_Idle(t *testing.T) {
	now := time.Unix(10_000, 0)
	table := SliceTable([]model.Slice{{Pod: "works"}, {Pod: "idle", IdleSince: &metav1.Time{Time: now.Add(-2 * time.Hour)}}}, now, true)
	at := slices.Index(table.header, "IDLE")
	if at < 0 || table.rows[0][at] != "" || table.rows[1][at] != "120m" {
		t.Errorf("%q, %q", table.header, table.rows)
	}
}

// A slice whose container runs with other amounts than the ledger grants is shown as drifted.
// A pod that cannot start because its node's agent is away says so, with the kubelet's words.
func TestWhyAgentAway(t *testing.T) {
	l := v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue},
		{Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionFalse, Message: "its pod crashes"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "gpu-1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	pod.Annotations = map[string]string{v1alpha1.AnnotationShares: "{}", v1alpha1.AnnotationPlacement: `{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-a","core":10,"memMiB":10}]}}}`}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: "no plugin"}}}}
	const want = "it is on node gpu-1, pending; the node starts no container with a share now: its pod crashes; the kubelet says of container main: CreateContainerError: no plugin"
	if got := Why([]corev1.Pod{*pod}, Evidence{Ledgers: []v1alpha1.SliceLedger{l}})[0].State; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	pod.Status.Phase = corev1.PodRunning
	if got := Why([]corev1.Pod{*pod}, Evidence{Ledgers: []v1alpha1.SliceLedger{l}})[0].State; got != "it does not wait for Vernier: it is on node gpu-1, running" {
		t.Errorf("a pod that runs: %q", got)
	}
}

func TestAgo(t *testing.T) {
	now := time.Now()
	for at, want := range map[metav1.Time]string{{}: "not known", metav1.NewTime(now.Add(-time.Minute)): "60s ago"} {
		if got := Ago(now, at); got != want {
			t.Errorf("%v: %q, want %q", at, got, want)
		}
	}
}
