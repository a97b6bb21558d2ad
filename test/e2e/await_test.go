// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
)

// patience bounds every wait: long enough for two loaded cores, short enough to
// end a run that hangs. No test passes or fails by how long something takes.
var patience = 2 * time.Minute

// await polls until check is satisfied; its last words are the failure's text.
func await(t *testing.T, what string, check func() (bool, string)) {
	t.Helper()
	awaitFor(t, patience, what, check)
}

// awaitFor is for what takes a machine that has time for it as well.
func awaitFor(t *testing.T, patience time.Duration, what string, check func() (bool, string)) {
	t.Helper()
	system.Await(t, patience, what, func(context.Context) (bool, string) { return check() })
}

// create makes the pod and, when the test ends, deletes it and awaits that its
// slices came back: Invariant 6 after every test.
func create(t *testing.T, p *pod) *corev1.Pod {
	t.Helper()
	made, err := ask(t, p)
	if err != nil {
		t.Fatalf("creating pod %s: %v", p.Name, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			describe(t, made)
		}
		remove(t, made)
	})
	return made
}

// refused creates a pod that must not be admitted, and returns the refusal.
func refused(t *testing.T, p *pod) string {
	t.Helper()
	made, err := ask(t, p)
	if err == nil {
		remove(t, made)
		t.Fatalf("pod %s was admitted", p.Name)
	}
	return err.Error()
}

// ask creates a pod. As whoever makes pods does, it asks again when the webhook was not
// heard in its five seconds, which is no answer, and while a pod of that name goes.
func ask(t *testing.T, p *pod) (made *corev1.Pod, err error) {
	t.Helper()
	await(t, "an answer to the creation of pod "+p.Name, func() (bool, string) {
		made, err = sys.Kube.CoreV1().Pods(p.Namespace).Create(t.Context(), &p.Pod, metav1.CreateOptions{})
		return err == nil || !strings.Contains(err.Error(), "failed calling webhook") && !strings.Contains(err.Error(), "object is being deleted"), fmt.Sprint(err)
	})
	return made, err
}

// remove deletes the pod and waits until none of its containers runs and no ledger has a
// slice of it. It has its own context: it runs in clean-ups, when the test's is over.
func remove(t *testing.T, p *corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pods := sys.Kube.CoreV1().Pods(p.Namespace)
	err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		t.Errorf("deleting pod %s: %v", p.Name, err)
		return
	}
	var held []string
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		held = held[:0]
		list := &v1alpha1.SliceLedgerList{}
		if err := sys.Client.List(ctx, list); err != nil {
			return false, nil
		}
		for _, l := range list.Items {
			for _, s := range slicesOf(&l, p.UID) {
				held = append(held, fmt.Sprintf("%s %+v", l.Name, s))
			}
		}
		now, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, nil
		case now.UID == p.UID && now.Status.Phase != corev1.PodSucceeded && now.Status.Phase != corev1.PodFailed:
			held = append(held, status(now))
		}
		return len(held) == 0, nil
	})
	if err != nil {
		t.Errorf("Invariant 6: pod %s was deleted, and has not ended or its slices are not released: %v", p.Name, held)
	}
}

func get(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	now, err := sys.Kube.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading pod %s: %v", p.Name, err)
	}
	return now
}

func awaitPod(t *testing.T, p *corev1.Pod, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var now *corev1.Pod
	await(t, "pod "+p.Name+" "+what, func() (bool, string) {
		now = get(t, p)
		return ok(now), status(now)
	})
	return now
}

func awaitReady(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	return awaitPod(t, p, "to be ready", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

func awaitPhase(t *testing.T, p *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	return awaitPod(t, p, "to be "+string(phase), func(p *corev1.Pod) bool { return p.Status.Phase == phase })
}

// awaitEvent waits for an event of the pod whose text has all the parts.
func awaitEvent(t *testing.T, p *corev1.Pod, parts ...string) string {
	t.Helper()
	var found string
	await(t, fmt.Sprintf("an event of pod %s with %q", p.Name, parts), func() (bool, string) {
		var all []string
		for _, m := range events(t.Context(), p) {
			all = append(all, m)
			if containsAll(m, parts) {
				found = m
				return true, ""
			}
		}
		return false, strings.Join(all, "\n")
	})
	return found
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

func events(ctx context.Context, p *corev1.Pod) []string {
	return sys.Events(ctx, p.Namespace, "involvedObject.uid="+string(p.UID))
}

func ledger(t *testing.T, node string) *v1alpha1.SliceLedger {
	t.Helper()
	l := &v1alpha1.SliceLedger{}
	if err := sys.Client.Get(t.Context(), client.ObjectKey{Name: node}, l); err != nil {
		t.Fatalf("reading ledger %s: %v", node, err)
	}
	return l
}

// slicesOf are the slices that a ledger holds for a pod.
func slicesOf(l *v1alpha1.SliceLedger, uid types.UID) []v1alpha1.Slice {
	var out []v1alpha1.Slice
	for _, d := range l.Spec.Devices {
		for _, s := range d.Slices {
			if s.Pod == uid {
				out = append(out, s)
			}
		}
	}
	return out
}

// values reads what the demo program has printed by the time that it holds, fails
// or has ended: a container counts as ready before it has said anything.
func values(t *testing.T, p *corev1.Pod, container string) map[string]string {
	t.Helper()
	var got map[string]string
	await(t, "what container "+container+" of pod "+p.Name+" says", func() (bool, string) {
		over := ended(get(t, p), container)
		text, err := sys.Logs(t.Context(), p.Namespace, p.Name, container)
		if err != nil {
			return false, err.Error()
		}
		got = parse(text)
		return over || got["hold"] != "" || got["error"] != "" || got["saw"] != "", text
	})
	return got
}

func ended(p *corev1.Pod, container string) bool {
	return slices.ContainsFunc(append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...), func(c corev1.ContainerStatus) bool {
		return c.Name == container && c.State.Terminated != nil
	})
}

// parse reads the demo program's output: key=value words, with the first word of
// the line before them ("device.total_mib"), and the number of lines of each kind
// under that word alone.
func parse(text string) map[string]string {
	out, lines := map[string]string{}, map[string]int{}
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		lines[words[0]]++
		for _, word := range words[1:] {
			if k, v, ok := strings.Cut(word, "="); ok {
				out[words[0]+"."+k] = v
			}
		}
	}
	for word, n := range lines {
		out[word] = strconv.Itoa(n)
	}
	return out
}

// isFree reports whether a program finds so much memory free as a limit leaves it, of which
// its own context takes a part: some hundred MiB on a real GPU.
func isFree(values map[string]string, mib int64) bool {
	free, err := strconv.ParseInt(values["device.free_mib"], 10, 64)
	return err == nil && free <= mib && free > mib-contextMiB
}

const contextMiB = 600 // a context takes less

func status(p *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s node=%s gates=%v", p.Status.Phase, p.Spec.NodeName, p.Spec.SchedulingGates)
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		fmt.Fprintf(&b, " %s:%+v", c.Name, c.State)
	}
	return b.String()
}

func describe(t *testing.T, p *corev1.Pod) {
	ctx := context.Background()
	now, err := sys.Kube.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		t.Logf("pod %s: %v", p.Name, err)
		return
	}
	t.Logf("pod %s: %s\n  %s", p.Name, status(now), strings.Join(events(ctx, now), "\n  "))
}
