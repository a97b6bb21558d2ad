// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package preempt measures how long a pod waits whose GPU others have to leave first, beside
// the same pod on a free GPU in the same round: on a real cluster, with everything that takes
// part, from the pod's creation until it runs. It judges no figure.
package preempt

import (
	"context"
	"os"
	"testing"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

const (
	namespace = "bench"
	node      = "n1"
)

// The priority classes.
const (
	low  = "low"
	high = "high"
)

var sys *system.System

func TestMain(m *testing.M) {
	os.Exit(system.Main(m, system.Options{Name: "bench-preempt",
		Nodes: []system.NodeOptions{{Name: node, GPUs: simgpu.GPU{Model: simgpu.A100, Count: 2}}}}, makeReady))
}

func makeReady(ctx context.Context, s *system.System) error {
	sys = s
	for name, value := range map[string]int32{low: 10, high: 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if _, err := s.Kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return s.Namespaces(ctx, map[string]bool{namespace: true})
}
