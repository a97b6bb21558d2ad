// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package preempt

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

const (
	// grace is the victims': they ignore SIGTERM, so that all of it passes.
	grace = 2 * time.Second
	// bar is how long after it the design has a preemptor started, at p99.
	bar = 3 * time.Second

	victims  = 2
	warmUp   = 2
	patience = 90 * time.Second
)

// BenchmarkPreemption has one of two GPUs filled by pods of low priority, and two pods of high
// priority come, one after the other, once per iteration: the first finds a GPU that is free,
// the second one that others have to leave.
//
// Metrics: milliseconds from creation to running at p50 and p99, of the first (free) and of the
// second without the grace period of its victims (preempts); for how many that was longer than
// the design has it (late). Of the second's, the parts at p50: until the last victim is asked to
// end (evicts), from the end of its grace until the pod has its GPU (frees), and until it runs
// (starts).
func BenchmarkPreemption(b *testing.B) {
	took := map[string][]time.Duration{}
	round := func(i int, count bool) {
		var leave []string
		for k := range victims {
			p := newPod(fmt.Sprintf("victim-%d-%d", i, k), low, v1alpha1.WholeGPU/victims)
			// The first process of a container gets no signal that it does not handle.
			p.Spec.Containers[0].Command = []string{"/bin/sleep", "1000000"}
			run(b, p)
			leave = append(leave, p.Name)
		}
		first := run(b, newPod(fmt.Sprintf("first-%d", i), high, v1alpha1.WholeGPU))
		if n := leaving(b, leave); n > 0 {
			b.Fatalf("%d pods had to leave for one for which a GPU was free", n)
		}
		second := run(b, newPod(fmt.Sprintf("second-%d", i), high, v1alpha1.WholeGPU))
		if n := leaving(b, leave); n < victims {
			b.Fatalf("%d of %d pods had to leave, and another has their GPU", n, victims)
		}
		empty(b)
		if !count {
			return
		}
		for name, t := range map[string]time.Duration{
			free: first.Running, preempts: second.Running - grace,
			"evicts": second.Evicted, "frees": second.Granted - second.Evicted - grace, "starts": second.Running - second.Granted,
		} {
			took[name] = append(took[name], t)
		}
	}
	for i := range warmUp {
		round(-1-i, false)
	}
	for i := 0; b.Loop(); i++ {
		round(i, true)
	}
	b.ReportMetric(0, "ns/op") // of a round: it says nothing
	for _, arm := range []string{free, preempts} {
		p50, p99 := quantile(0.5, took[arm]), quantile(0.99, took[arm])
		b.ReportMetric(p50, arm+"-p50-ms")
		b.ReportMetric(p99, arm+"-p99-ms")
		b.Logf("%s, %d times: p50 %.0f ms, p99 %.0f, shortest %.0f, longest %.0f", arm, len(took[arm]), p50, p99, quantile(0, took[arm]), quantile(1, took[arm]))
	}
	late := 0
	for _, t := range took[preempts] {
		if t > bar {
			late++
		}
	}
	b.ReportMetric(float64(late), "late")
	for _, part := range []string{"evicts", "frees", "starts"} {
		b.ReportMetric(quantile(0.5, took[part]), part+"-p50-ms")
	}
}

// The two that are compared.
const (
	free     = "free"
	preempts = "preempts"
)

// quantile by the nearest rank, in milliseconds.
func quantile(of float64, times []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[max(int(math.Ceil(of*float64(len(sorted))))-1, 0)]) / float64(time.Millisecond)
}

func newPod(name, class string, core v1alpha1.Percent) *corev1.Pod {
	seconds := int64(grace / time.Second)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			PriorityClassName: class, RestartPolicy: corev1.RestartPolicyNever, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &seconds,
			Containers: []corev1.Container{{
				Name: "main", Image: system.DemoImage, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/cudademo", "--hold"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
					v1alpha1.ResourceCore: *resource.NewQuantity(int64(core), resource.DecimalSI),
				}},
			}},
		},
	}
}

// run makes the pod, and returns when it runs.
func run(b *testing.B, p *corev1.Pod) system.Course {
	b.Helper()
	c := must.Get(sys.Run(b.Context(), p))(b)
	return c
}

// leaving is how many of the pods end, or have ended.
func leaving(b *testing.B, names []string) int {
	b.Helper()
	list := must.Get(sys.Kube.CoreV1().Pods(namespace).List(b.Context(), metav1.ListOptions{}))(b)
	n := len(names)
	for _, p := range list.Items {
		if slices.Contains(names, p.Name) && p.DeletionTimestamp == nil {
			n--
		}
	}
	return n
}

// empty ends all pods, and returns when nothing of them is left.
func empty(b *testing.B) {
	b.Helper()
	pods := sys.Kube.CoreV1().Pods(namespace)
	must.Do(b, pods.DeleteCollection(b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	left := ""
	err := wait.PollUntilContextTimeout(b.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ledger := &v1alpha1.SliceLedger{}
		if err := sys.Client.Get(ctx, client.ObjectKey{Name: node}, ledger); err != nil {
			return false, err
		}
		granted := 0
		for _, d := range ledger.Spec.Devices {
			granted += len(d.Slices)
		}
		left = fmt.Sprintf("%d pods and %d slices", len(list.Items), granted)
		return len(list.Items)+granted == 0, nil
	})
	if err != nil {
		b.Fatalf("there are still %s: %v", left, err)
	}
}
