// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e owns what must hold on a real cluster with Vernier installed as a
// user would install it. Its tests share one cluster; each puts back what it
// changed. They run one after the other, but for those marked parallel, which Go
// runs together at the end: they wait more than they work, kill nothing that
// another one needs, and leave each other room (at most 80 core, on the small node).
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

const (
	namespace  = "tenants"    // labelled for injection
	neighbours = "neighbours" // another, of tenants that the first does not trust
	unlabelled = "outsider"   // not
	small      = "n1"         // the node with one GPU
	cut        = "n3"         // the node whose one is in MIG mode; cordoned
)

// large is the node with two GPUs; on a card there is only the other.
var large = "n2"

var sys *system.System

var (
	card = flag.String("card", "", "what `gpu-cluster` runs the tests on, on one node: real, this machine's GPUs; simulated, one that is not; "+
		"or down, to take down what was left")
	keep = flag.Bool("keep", false, "leave the cluster up")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if *card != "" {
		return runOnCard(m)
	}
	dir, err := os.MkdirTemp("", "vernier-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = twoSockets(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return system.Main(m, system.Options{Name: "e2e", Nodes: []system.NodeOptions{
		{Name: small, GPUs: simgpu.GPU{Model: simgpu.A100}, Driver: simgpu.Driver555},
		// A GPU on each of two NUMA nodes.
		{Name: large, Driver: simgpu.DriverNewest, GPUs: simgpu.GPU{Model: simgpu.H100}, More: []simgpu.GPU{{Model: simgpu.H100, NUMA: 1}}, MIG: true,
			Args: []string{"--end-device-holders", "--numa-binding", "--sys-dir=" + dir}},
		{Name: cut, GPUs: simgpu.GPU{Model: simgpu.A100, MIG: true}},
	}}, makeReady)
}

func makeReady(ctx context.Context, s *system.System) error {
	sys = s
	// The NVML that a test opens itself is that node's; parallel tests cannot say so
	// one by one.
	os.Setenv("SIMGPU_STATE", sys.Node(cut).GPU.State)
	os.Setenv("SIMGPU_ALL_DEVICES", "1")
	if err := sys.Namespaces(ctx, map[string]bool{namespace: true, neighbours: true, unlabelled: false}); err != nil {
		return err
	}
	// An instance would be the best for every pod; only those that are to be on one go
	// there.
	_, err := sys.Kube.CoreV1().Nodes().Patch(ctx, cut, types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	return err
}

func placement(t *testing.T, p *corev1.Pod) *v1alpha1.Placement {
	t.Helper()
	doc, err := v1alpha1.ParsePlacement(p.Annotations[v1alpha1.AnnotationPlacement])
	if err != nil {
		t.Fatalf("pod %s: %v", p.Name, err)
	}
	return doc
}

// counted is the compute that a ledger counts for a pod, over all devices.
func counted(l *v1alpha1.SliceLedger, uid types.UID) v1alpha1.Percent {
	var sum v1alpha1.Percent
	for _, s := range slicesOf(l, uid) {
		sum += s.Core - s.ReuseCore
	}
	return sum
}

// awaitGuarantee waits until the node's status says what holds the memory side.
func awaitGuarantee(t *testing.T, p *corev1.Pod, container string, want v1alpha1.Guarantee) {
	t.Helper()
	await(t, fmt.Sprintf("the ledger to state %s for %s/%s", want, p.Name, container), func() (bool, string) {
		l := ledger(t, get(t, p).Spec.NodeName)
		for _, s := range l.Status.Slices {
			if s.Pod == p.UID && s.Ctr == container {
				return s.Memory == want, fmt.Sprintf("%+v", s)
			}
		}
		return false, "not attached"
	})
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
