// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/resizing"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// resizeTo asks for other amounts of container main.
func resizeTo(t *testing.T, p *corev1.Pod, to v1alpha1.ResizeTo) error {
	t.Helper()
	text := must.Get(json.Marshal(v1alpha1.Resize{"main": to}))(t)
	patch := must.Get(json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationResize: string(text)}}}))(t)
	_, err := sys.Cluster.Client.CoreV1().Pods(p.Namespace).Patch(t.Context(), p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// awaitResize waits for what the condition says of these amounts.
func awaitResize(t *testing.T, p *corev1.Pod, to v1alpha1.ResizeTo, reason string) *corev1.Pod {
	t.Helper()
	text := v1alpha1.Resize{"main": to}.String()
	return awaitPod(t, p, reason+": "+text, func(p *corev1.Pod) bool {
		c := resizing.ConditionOf(p)
		return c != nil && c.Reason == reason && strings.HasPrefix(c.Message, text)
	})
}

// seen is the memory that a program sees that asks now.
func seen(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	out, err := sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/cudademo")
	if err != nil {
		t.Fatalf("asking for the memory: %v\n%s", err, out)
	}
	return parse(out)["device.total_mib"]
}

// A running container's share shrinks and grows without a restart. What it frees goes to others, and
// what they have it waits for.
func TestResize(t *testing.T) {
	total := int64(ledger(t, small).Status.Devices[0].Mem)
	owner := awaitReady(t, create(t, newPod("resized").share(60, 0).limit(v1alpha1.ResourceMemMiB, total-2000).args("--alloc", "2048", "--hold").on(small)))
	device := placement(t, owner).Containers["main"].Devices[0].UUID
	ask := func(core, mem int64, reason string) {
		t.Helper()
		to := v1alpha1.ResizeTo{Core: v1alpha1.Percent(core), MemMiB: v1alpha1.MiB(mem)}
		must.Do(t, resizeTo(t, owner, to))
		awaitResize(t, owner, to, reason)
	}
	ask(20, 4000, resizing.ReasonDone)
	if got := seen(t, owner); got != "4000" {
		t.Errorf("a program sees %s MiB, want 4000", got)
	}
	if s := slicesOf(ledger(t, small), owner.UID); len(s) != 1 || s[0].Core != 20 || s[0].Mem != 4000 {
		t.Errorf("the ledger has %+v", s)
	}
	if d := placement(t, get(t, owner)).Containers["main"]; d.Devices[0].MemMiB != 4000 || !d.Resized {
		t.Errorf("the placement has %+v", d)
	}
	ask(20, 1000, resizing.ReasonInfeasible)
	if c := resizing.ConditionOf(get(t, owner)); !strings.Contains(c.Message, "2048 MiB are in use") {
		t.Errorf("condition %+v, want the memory in use", c)
	}
	if err := resizeTo(t, owner, v1alpha1.ResizeTo{Core: 61}); err == nil || !strings.Contains(err.Error(), "can't have more") {
		t.Errorf("more than the request: %v", err)
	}
	// The rest is another's: its requests and the owner's are more than the device.
	other := newPod("in-the-freed-part").share(80, 0).limit(v1alpha1.ResourceMemMiB, total-4000).on(small)
	other.annotate(v1alpha1.AnnotationGPUUUID, device)
	second := awaitReady(t, create(t, other))
	ask(60, total-2000, resizing.ReasonDeferred)
	remove(t, second)
	awaitResize(t, owner, v1alpha1.ResizeTo{Core: 60, MemMiB: v1alpha1.MiB(total - 2000)}, resizing.ReasonDone)
	if got := seen(t, owner); got != itoa(total-2000) {
		t.Errorf("a program sees %s MiB, want %d", got, total-2000)
	}
	if now := get(t, owner); now.Status.ContainerStatuses[0].RestartCount != 0 || now.Status.ContainerStatuses[0].State.Running == nil {
		t.Errorf("the container did not run on: %+v", now.Status.ContainerStatuses)
	}
	var took []time.Duration
	for i := range 40 {
		from := time.Now()
		ask(int64(20+i%2*20), 4000, resizing.ReasonDone)
		took = append(took, time.Since(from))
	}
	slices.Sort(took)
	t.Logf("a resize is in force and reported after %s at p50, %s at the slowest of 40", took[20], took[39])
}

// A pod whose limits have no room begins with less, as long as that has. Its node shows the difference.
func TestStart(t *testing.T) {
	total := int64(ledger(t, small).Status.Devices[0].Mem)
	first := awaitReady(t, create(t, newPod("most").share(70, 0).limit(v1alpha1.ResourceMemMiB, total-3000).on(small)))
	device := placement(t, first).Containers["main"].Devices[0].UUID
	late := newPod("begins-small").share(60, 0).limit(v1alpha1.ResourceMemMiB, total-3000).on(small)
	late.annotate(v1alpha1.AnnotationGPUUUID, device).annotate(v1alpha1.AnnotationStart, `{"main":{"core":10,"memMiB":1500}}`)
	second := awaitReady(t, create(t, late))
	if got := seen(t, second); got != "1500" {
		t.Errorf("a program sees %s MiB, want 1500", got)
	}
	to := v1alpha1.ResizeTo{Core: 60, MemMiB: v1alpha1.MiB(total - 3000)}
	must.Do(t, resizeTo(t, second, to))
	awaitResize(t, second, to, resizing.ReasonDeferred)
	remove(t, first)
	awaitResize(t, second, to, resizing.ReasonDone)
	if got := seen(t, second); got != fmt.Sprint(total-3000) {
		t.Errorf("a program sees %s MiB, want %d", got, total-3000)
	}
}
