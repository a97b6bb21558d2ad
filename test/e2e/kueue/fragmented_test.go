// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kueue

import (
	"flag"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/test/must"
)

// many is how many Jobs ask for a whole GPU that nobody has: `make bench-kueue` takes 200.
var many = flag.Int("many", 40, "how many Jobs wait for a whole GPU")

// free is the compute of each GPU that is not used, and holders how many of the Jobs quota admits at a time.
const (
	free    = 30
	holders = free * 2 * gpus / 100
)

// fill has a pod on each GPU that leaves so much compute of it.
func fill(t *testing.T, namespace string) {
	t.Helper()
	must.Do(t, sys.Namespaces(t.Context(), map[string]bool{namespace: true}))
	t.Cleanup(func() { empty(t, namespace) })
	for i := range 2 * gpus {
		p := &corev1.Pod{Spec: podSpec(limits(100-free, 1000), forever)}
		p.Namespace, p.Name = namespace, fmt.Sprintf("fill-%d", i)
		must.Do(t, sys.Client.Create(t.Context(), p))
	}
	awaitRunning(t, namespace, "", 2*gpus)
}

// Jobs for whole GPUs, of which each has a part in use, have quota by the sums. Without the check Kueue admits
// them, they cannot be placed, and what would fit waits behind them. With it none is admitted, and the
// small ones have the quota.
func TestFragmented(t *testing.T) {
	placementCheck(t)
	fill(t, "fill")
	whole := func(namespace string, n int) {
		t.Helper()
		for i := range n {
			job(t, namespace, fmt.Sprintf("whole-%d", i), 1, limits(100, 1000))
		}
	}
	unplaceable := func(namespace string) (n int) {
		for _, w := range workloads(t, namespace) {
			if is(w, "Admitted") {
				n++
			}
		}
		return n
	}

	queue(t, "unchecked", 100*holders, "")
	whole("unchecked", holders)
	await(t, "Kueue to admit what cannot be placed", func() (bool, string) {
		n := unplaceable("unchecked")
		return n == holders, fmt.Sprint(n)
	})
	job(t, "unchecked", "small", 1, limits(free, 1000))
	await(t, "the small one to wait behind them", func() (bool, string) {
		w := workloads(t, "unchecked")["small"]
		return w != nil && quotaFull(w), fmt.Sprint(w)
	})
	empty(t, "unchecked")

	queue(t, "checked", 100*holders, withCheck)
	whole("checked", *many)
	await(t, "a verdict on one of them", func() (bool, string) {
		for _, w := range workloads(t, "checked") {
			if _, message, _ := said(w); message != "" {
				return true, ""
			}
		}
		return false, "none"
	})
	start := time.Now()
	job(t, "checked", "small", 1, limits(free, 1000))
	awaitRunning(t, "checked", "small", 1)
	t.Logf("the small one ran %v after it was submitted behind %d, of which %d hold quota at a time", time.Since(start).Round(time.Millisecond), *many, holders)
	if n := unplaceable("checked"); n != 1 {
		t.Errorf("%d Workloads are admitted, want the small one alone", n)
	}
}

// Once GPUs come free the whole ones are admitted, too.
func TestFreedGPUs(t *testing.T) {
	placementCheck(t)
	fill(t, "filled")
	queue(t, "freed", 10000, withCheck)
	job(t, "freed", "whole", 2, limits(100, 1000), func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) })
	awaitSaid(t, "freed", "whole", "Pending", "tried again after")
	empty(t, "filled")
	awaitRunning(t, "freed", "whole", 2)
}
