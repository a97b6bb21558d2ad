// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
)

const (
	nodeCount   = 1000
	gpusPerNode = 8
	gpuMiB      = 81920
	kwokLabel   = "vernier.dev/bench-kwok"
	// workers is how many requests the benchmark itself has under way.
	workers = 16
	// patience bounds every wait.
	patience = 10 * time.Minute
)

// each does n things, workers at a time.
func each(ctx context.Context, n int, do func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range n {
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

func nodeName(i int) string { return fmt.Sprintf("kwok-%04d", i) }

// makeNodes makes the nodes with their ledgers and waits until all are Ready.
func makeNodes(ctx context.Context) error {
	err := each(ctx, nodeCount, func(ctx context.Context, i int) error {
		node, err := kube.CoreV1().Nodes().Create(ctx, newNode(nodeName(i)), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		ledger := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}}}
		if err := sys.Client.Create(ctx, ledger); err != nil {
			return err
		}
		for d := range gpusPerNode {
			ledger.Status.Devices = append(ledger.Status.Devices, v1alpha1.DeviceStatus{
				UUID:  fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", i, d),
				Index: int32(d), Minor: int32(d), Model: "NVIDIA A100-SXM4-80GB", Mem: gpuMiB, Healthy: true})
		}
		ledger.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue,
			Reason: "Benchmark", LastTransitionTime: metav1.Now()}}
		if err := sys.Client.Status().Update(ctx, ledger); err != nil {
			return err
		}
		agent := system.AgentPod(node.Name)
		if err := sys.Client.Create(ctx, agent); err != nil {
			return err
		}
		agent.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return sys.Client.Status().Update(ctx, agent)
	})
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: kwokLabel + "=true"})
		if err != nil {
			return false, err
		}
		for i := range nodes.Items {
			if len(nodes.Items[i].Spec.Taints) > 0 {
				return false, nil
			}
		}
		return len(nodes.Items) == nodeCount, nil
	})
}

func newNode(name string) *corev1.Node {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("768Gi"), corev1.ResourcePods: resource.MustParse("250"),
		v1alpha1.ResourceCore: resource.MustParse("800"), v1alpha1.ResourceMemPercent: resource.MustParse("800"),
		v1alpha1.ResourceMemMiB: *resource.NewQuantity(gpusPerNode*gpuMiB, resource.DecimalSI),
		stockResource:           *resource.NewQuantity(gpusPerNode, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kwokLabel: "true", corev1.LabelHostname: name}},
		Status:     corev1.NodeStatus{Capacity: has, Allocatable: has},
	}
}

// vacate plays the nodes' agents: the containers of all pods with slices are gone.
// It returns when no slice is left.
func vacate(ctx context.Context) error {
	held := func(ctx context.Context) (ledgers []v1alpha1.SliceLedger, err error) {
		var list v1alpha1.SliceLedgerList
		err = sys.Client.List(ctx, &list)
		for _, l := range list.Items {
			if len(grants.Pods(&l)) > 0 || len(l.Status.Released) > 0 {
				ledgers = append(ledgers, l)
			}
		}
		return ledgers, err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		ledgers, err := held(ctx)
		if err != nil || len(ledgers) == 0 {
			return err == nil, err
		}
		return false, each(ctx, len(ledgers), func(ctx context.Context, i int) error {
			l := &ledgers[i]
			var gone []types.UID
			for uid := range grants.Pods(l) {
				gone = append(gone, uid)
			}
			l.Status.Released = gone
			// The allocator writes at the same time: the next look tries again.
			_ = sys.Client.Status().Update(ctx, l)
			return nil
		})
	})
}
