// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// arm is what pods ask for beside CPU and memory, and the namespace that they are in.
type arm string

const (
	plain       arm = "bench-plain"   // nothing
	stock       arm = "bench-stock"   // one of a plain extended resource
	withVernier arm = "bench-vernier" // a share of a GPU
)

var arms = []arm{plain, stock, withVernier}

const stockResource = "example.com/gpu"

// sizes of shares, in percent of a GPU, in turn.
var sizes = []int64{10, 20, 30, 50}

func (a arm) pod(i int) *corev1.Pod {
	asks := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	switch a {
	case stock:
		asks[stockResource] = *resource.NewQuantity(1, resource.DecimalSI)
	case withVernier:
		size := *resource.NewQuantity(sizes[i%len(sizes)], resource.DecimalSI)
		asks[v1alpha1.ResourceCore], asks[v1alpha1.ResourceMemPercent] = size, size
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%05d", i), Namespace: string(a), Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Limits: asks, Requests: asks}}}},
	}
}

// course is when pods were created, let go and bound.
type course struct {
	mu                      sync.Mutex
	created, ungated, bound map[string]time.Time
	firstCreated, lastBound time.Time
	count                   int
	done                    chan struct{}
	onBound                 func(n int)
}

// follow watches the pods of an arm until n of them are bound.
func follow(b *testing.B, a arm, n int) *course {
	b.Helper()
	c := &course{created: map[string]time.Time{}, ungated: map[string]time.Time{}, bound: map[string]time.Time{}, count: n, done: make(chan struct{})}
	ctx, stop := context.WithCancel(b.Context())
	b.Cleanup(stop)
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(string(a)))
	see := func(obj any) {
		if c.see(obj.(*corev1.Pod), time.Now()) {
			close(c.done)
			stop()
		}
	}
	must.Get(factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, is any) { see(is) }}))(b)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return c
}

// see takes note of a pod and tells whether it was the last to be bound.
func (c *course) see(p *corev1.Pod, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.ungated[p.Name]; !known && len(p.Spec.SchedulingGates) == 0 {
		c.ungated[p.Name] = now
	}
	if _, known := c.bound[p.Name]; known || p.Spec.NodeName == "" {
		return false
	}
	c.bound[p.Name], c.lastBound = now, now
	if c.onBound != nil {
		c.onBound(len(c.bound))
	}
	return len(c.bound) == c.count
}

// create makes the pods as fast as the API server takes them.
func (c *course) create(b *testing.B, a arm) {
	b.Helper()
	c.firstCreated = time.Now()
	err := each(b.Context(), c.count, func(ctx context.Context, i int) error {
		p := a.pod(i)
		c.mu.Lock()
		c.created[p.Name] = time.Now()
		c.mu.Unlock()
		_, err := kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		b.Fatalf("%s: %v", a, err)
	}
}

// await returns when all pods are bound.
func (c *course) await(b *testing.B, a arm) {
	b.Helper()
	end, look := time.After(patience), time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-look.C:
			startEnded(b)
		case <-end:
			c.mu.Lock()
			defer c.mu.Unlock()
			b.Fatalf("%s: %d of %d pods are let go and %d bound after %v", a, len(c.ungated), c.count, len(c.bound), patience)
		}
	}
}

// rate is pods a second from the first creation to the last binding.
func (c *course) rate() float64 {
	return float64(c.count) / c.lastBound.Sub(c.firstCreated).Seconds()
}

// waits are the pods' times from created to bound.
func (c *course) waits() (times []time.Duration) {
	for name, at := range c.bound {
		times = append(times, at.Sub(c.created[name]))
	}
	return times
}

// clear removes the arm's pods and what they hold.
func (a arm) clear(b *testing.B) {
	b.Helper()
	now := int64(0)
	pods := kube.CoreV1().Pods(string(a))
	// On a busy machine the API server ends the request before all are deleted.
	err := wait.PollUntilContextTimeout(b.Context(), 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
			b.Logf("%s is not cleared yet: %v", a, err)
			return false, nil
		}
		left, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0, err
	})
	if err == nil && a == withVernier {
		err = vacate(b.Context())
	}
	if err == nil {
		err = kube.CoreV1().Events(string(a)).DeleteCollection(b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	if err != nil {
		b.Fatalf("clearing %s: %v", a, err)
	}
}
