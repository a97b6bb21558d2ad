// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package start measures what Vernier adds to a container's start, on a real
// cluster and at the container runtime: the time of CRI's CreateContainer and
// StartContainer, beside the same container without Vernier in the same run.
//
// It plays the kubelet and the allocator, which would only add noise: it talks to
// containerd and writes the ledger itself. It judges no figure.
package start

import (
	"context"
	"os"
	"testing"

	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

var sys *system.System

func TestMain(m *testing.M) {
	gpu := simgpu.GPU{Model: simgpu.A100, Count: 3}
	os.Exit(system.Main(m, system.Options{Name: "bench",
		Nodes: []system.NodeOptions{{Name: "n1", GPUs: gpu}, {Name: "n2", GPUs: gpu},
			{Name: "n3", GPUs: simgpu.GPU{Model: simgpu.A100, MIG: true}},
			{Name: "n4", GPUs: simgpu.GPU{Model: simgpu.A100, Count: 2}, Driver: simgpu.Driver535}}}, makeReady))
}

// makeReady stops those whose part the benchmark plays: the allocators would take
// slices back that they did not grant, the kubelets end pods that they don't know.
func makeReady(ctx context.Context, s *system.System) error {
	sys = s
	for _, a := range sys.Allocators {
		if err := a.Stop(ctx); err != nil {
			return err
		}
	}
	for i, n := range sys.Nodes {
		if err := n.Kubelet.Stop(ctx); err != nil {
			return err
		}
		// Only the modes need more than two nodes.
		if i >= 2 {
			if err := n.Agent.Stop(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
