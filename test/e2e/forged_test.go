// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"vernier.dev/vernier/api/v1alpha1"
)

const (
	forgedShares    = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`
	forgedPlacement = `{"version":"v1alpha1","node":"n1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-x","core":10,"memMiB":1024}]}}}`
)

// What only the system writes is refused from anybody else, wherever the webhook
// looks and wherever it doesn't.
func TestForgedAnnotationsAreRefused(t *testing.T) {
	cases := map[string]struct {
		pod  *pod
		says string
	}{
		"placement":                  {newPod("f").share(10, 10).annotate(v1alpha1.AnnotationPlacement, forgedPlacement), v1alpha1.AnnotationPlacement},
		"shares":                     {newPod("f").share(10, 10).annotate(v1alpha1.AnnotationShares, forgedShares), v1alpha1.AnnotationShares},
		"placement, asks nothing":    {newPod("f").annotate(v1alpha1.AnnotationPlacement, forgedPlacement), v1alpha1.AnnotationPlacement},
		"shares, asks nothing":       {newPod("f").annotate(v1alpha1.AnnotationShares, forgedShares), v1alpha1.AnnotationShares},
		"shares, other namespace":    {newPod("f").in(unlabelled).annotate(v1alpha1.AnnotationShares, forgedShares), v1alpha1.LabelInject + "=" + v1alpha1.LabelInjectEnabled},
		"placement, other namespace": {newPod("f").in(unlabelled).annotate(v1alpha1.AnnotationPlacement, forgedPlacement), v1alpha1.AnnotationPlacement},
		"asks, other namespace":      {newPod("f").in(unlabelled).share(10, 10), v1alpha1.LabelInject + "=" + v1alpha1.LabelInjectEnabled},
	}
	for name, c := range cases {
		if text := refused(t, c.pod); !strings.Contains(text, c.says) {
			t.Errorf("%s: refused without naming %s: %s", name, c.says, text)
		}
	}
}

// After admission nobody but the allocator moves a pod on: not by its annotations
// and not by its gate.
func TestPlacedOnlyByTheAllocator(t *testing.T) {
	awaitReady(t, create(t, newPod("occupant").share(90, 90).on(small)))
	p := create(t, newPod("eager").share(50, 50).on(small))
	for name, patch := range map[string]string{
		"placement": `[{"op":"add","path":"/metadata/annotations/vernier.dev~1placement","value":"{}"}]`,
		"shares":    `[{"op":"replace","path":"/metadata/annotations/vernier.dev~1shares","value":"{}"}]`,
		"guard":     `[{"op":"remove","path":"/metadata/annotations/required-plugins.noderesource.dev~1pod"}]`,
		"gate":      `[{"op":"remove","path":"/spec/schedulingGates/0"}]`,
	} {
		_, err := sys.Kube.CoreV1().Pods(namespace).Patch(t.Context(), p.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		if err == nil {
			t.Errorf("%s was changed by a user", name)
		}
	}
}

// Invariant 2 and 3: with every admission rule gone, a pod that forges all of it
// and goes straight to the node still gets no device: the ledger decides.
func TestForgedPastAdmissionGetsNothing(t *testing.T) {
	restore := sys.RemoveAdmission(t)
	defer restore()
	p := newPod("forged").annotate(v1alpha1.AnnotationShares, forgedShares).annotate(v1alpha1.AnnotationPlacement, forgedPlacement)
	p.Spec.NodeName = small
	made := create(t, p)
	awaitEvent(t, made, "ledger")
	now := get(t, made)
	if s := now.Status.ContainerStatuses; len(s) > 0 && (s[0].State.Running != nil || s[0].State.Terminated != nil) {
		t.Errorf("Invariant 2: the forged container ran: %s", status(now))
	}
	if now.Status.Phase != corev1.PodPending {
		t.Errorf("the forged pod is %s", now.Status.Phase)
	}
}

// The API server itself refuses a ledger that exceeds a device: Invariant 1
// against whoever writes.
func TestLedgerCannotBeOverbooked(t *testing.T) {
	p := awaitReady(t, create(t, newPod("booked").share(60, 60).on(small)))
	err := changeLedger(t, small, func(l *v1alpha1.SliceLedger) {
		for i := range l.Spec.Devices {
			for _, s := range l.Spec.Devices[i].Slices {
				if s.Pod == p.UID {
					s.Ctr = "second"
					l.Spec.Devices[i].Slices = append(l.Spec.Devices[i].Slices, s)
					break
				}
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "more compute than the device has") {
		t.Errorf("Invariant 1: 120 percent of a device: %v", err)
	}
}

// changeLedger writes a node's ledger as an administrator would, and returns what the API
// server says to the change: that others have written meanwhile is no answer to it.
func changeLedger(t *testing.T, node string, change func(*v1alpha1.SliceLedger)) error {
	return retry.RetryOnConflict(wait.Backoff{Duration: 20 * time.Millisecond, Steps: 500}, func() error {
		l := ledger(t, node)
		change(l)
		return sys.Client.Update(t.Context(), l)
	})
}
