// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/karpenter"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
)

// autoscaled is a cluster with the real scheduler and Karpenter, whose nodes the test starts.
type autoscaled struct {
	*server
	nodes *karpenter.Karpenter
	// made are the NodeClaims that there ever were, by their UIDs.
	made map[types.UID]string
}

func newAutoscaled(t *testing.T) *autoscaled {
	s := startWith(t, nil)
	s.clock, s.options.MaxGPUs = clock.RealClock{}, 64
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "vernier-allocator-buffers"}, policy))
	for i := range policy.Spec.Validations {
		policy.Spec.Validations[i].Expression = strings.ReplaceAll(policy.Spec.Validations[i].Expression, "<= 0", "<= 64")
	}
	s.must(s.Update(t.Context(), policy))
	a := &autoscaled{server: s, made: map[types.UID]string{}}
	example := must.Get(os.ReadFile("../docs/examples/autoscaling/nodepool.yaml"))(t)
	a.nodes = karpenter.Start(t, s.cfg, []karpenter.InstanceType{karpenter.GPUs(1), karpenter.GPUs(2), karpenter.GPUs(8)}, karpenter.NodeClass+string(example), false)
	apiserver.StartScheduler(t, s.cfg)
	return a
}

// await waits as the server does, for as long as Karpenter may take, and sees each NodeClaim.
func (a *autoscaled) await(what string, done func() (bool, string)) {
	a.t.Helper()
	last := ""
	a.nodes.Await(what, func() bool {
		claims := &unstructured.UnstructuredList{}
		claims.SetAPIVersion("karpenter.sh/v1")
		claims.SetKind("NodeClaimList")
		a.must(a.List(a.t.Context(), claims))
		for _, c := range claims.Items {
			a.made[c.GetUID()] = c.GetLabels()[corev1.LabelInstanceTypeStable]
		}
		is, now := done()
		if now != last {
			a.t.Logf("%s: %s", what, now)
			last = now
		}
		return is
	})
}

// asked waits until the buffers ask for so many devices.
func (a *autoscaled) asked(devices int64) {
	a.t.Helper()
	a.await(fmt.Sprintf("%d devices to be asked for", devices), func() (bool, string) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(buffers)
		a.must(a.List(a.t.Context(), list))
		sum := int64(0)
		for _, b := range list.Items {
			n, _, _ := unstructured.NestedInt64(b.Object, "spec", "replicas")
			sum += n
		}
		return sum == devices, fmt.Sprintf("%d asked", sum)
	})
}

// start starts a node's kubelet, and then its agent with so many devices.
func (a *autoscaled) start(instanceType string, devices int) (name string) {
	a.t.Helper()
	a.await("a node "+instanceType, func() (bool, string) {
		for _, n := range a.nodes.Nodes(instanceType) {
			name = n.Name
		}
		return name != "", strings.Join(a.nodes.NodeClaims(), " ")
	})
	a.nodes.StartKubelet(name)
	a.nodes.ShowCapacity(name)
	ledger := objects.Ledger(name)
	ledger.UID = ""
	a.must(a.Create(a.t.Context(), ledger))
	ledger = objects.WithStatus(ledger)
	first := ledger.Status.Devices[0]
	ledger.Status.Devices = nil
	for i := range devices {
		d := first
		d.UUID, d.Index, d.Minor = fmt.Sprintf("GPU-%s-%d", name, i), int32(i), int32(i)
		ledger.Status.Devices = append(ledger.Status.Devices, d)
	}
	a.must(a.Status().Update(a.t.Context(), ledger))
	return name
}

// bound waits until so many pods are bound to a node.
func (a *autoscaled) bound(node string, pods int) {
	a.t.Helper()
	a.await(fmt.Sprintf("%d pods on %s", pods, node), func() (bool, string) {
		list, n := &corev1.PodList{}, 0
		a.must(a.List(a.t.Context(), list, client.InNamespace("ns")))
		for _, p := range list.Items {
			if p.Spec.NodeName == node {
				n++
			}
		}
		return n == pods, fmt.Sprint(n)
	})
}

// Beside the real Karpenter: a fragmented cluster whose sums suffice scales up; 40 pods of 25 % with no GPU free ask
// for 10 devices; a full quota asks for none; no second node is made while an agent starts; and empty nodes go
// though a pod waits at our gate.
func TestKarpenter(t *testing.T) {
	a := newAutoscaled(t)
	a.addNode("own")
	a.run()
	onDevice := func(i int) func(*corev1.Pod) { return objects.Annotated(v1alpha1.AnnotationGPUUUID, gpu("own", i)) }
	for i := range 2 {
		a.addPod(fmt.Sprint("old", i), objects.Share(30, 100), onDevice(i))
	}
	a.bound("own", 2)

	a.addPod("big", objects.Share(100, 500))
	a.asked(1)
	one := a.start("gpu-1", 1)
	a.bound(one, 1)
	a.asked(0)

	for i := range 2 {
		a.addPod(fmt.Sprint("more", i), objects.Share(60, 100), onDevice(i))
	}
	a.bound("own", 4)
	for i := range 40 {
		a.addPod(fmt.Sprint("quarter", i), objects.Share(25, 100))
	}
	a.addPod("never", objects.Share(25, 100), objects.Annotated(v1alpha1.AnnotationGPUUUID, "GPU-none"))
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "full"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests." + v1alpha1.ResourceCore: resource.MustParse("1")}}}
	a.must(a.Create(t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard} // which a controller counts elsewhere
	a.must(a.Status().Update(t.Context(), quota))
	a.server.await("the quota to be full", func(ctx context.Context) (bool, error) {
		p := objects.Pod("beyond", map[string]v1alpha1.Share{"train": objects.Share(25, 100)})
		err := a.Create(ctx, p, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "exceeded quota"), nil
	})
	a.asked(10)
	large := a.start("gpu-8", 8)
	a.bound(large, 32)
	a.asked(2)
	small := a.start("gpu-2", 2)
	a.bound(small, 8)
	a.asked(0)
	var made []string
	for _, instanceType := range a.made {
		made = append(made, instanceType)
	}
	if slices.Sort(made); fmt.Sprint(made) != "[gpu-1 gpu-2 gpu-8]" {
		t.Errorf("NodeClaims were made for %v", made)
	}

	pods := &corev1.PodList{}
	a.must(a.List(t.Context(), pods, client.InNamespace("ns")))
	for _, p := range pods.Items {
		if p.Spec.NodeName != "" {
			a.must(a.Delete(t.Context(), &p, client.GracePeriodSeconds(0)))
		}
	}
	a.await("the nodes to go", func() (bool, string) { left := a.nodes.NodeClaims(); return len(left) == 0, fmt.Sprint(left) })
	if len(a.pod("never").Spec.SchedulingGates) == 0 {
		t.Error("the pod at the gate is gone")
	}
}
