// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/system"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// The four containers, each beside the one without Vernier that does the same.
const (
	device    = "device"     // no agent, the GPU by CRI's own CDI devices and NVIDIA's spec
	slice     = "slice"      // the agent gives a slice of the GPU
	plain     = "plain"      // no agent, no GPU
	plainWith = "plain-with" // no GPU, the agent looks on
)

var variants = []string{device, slice, plain, plainWith}

const (
	containerName = "main"
	patience      = 90 * time.Second
)

var share = v1alpha1.Share{GPUs: 1, Core: 30, MemMiB: 20480}

// node is a node on which every variant has its sandbox.
type node struct {
	*system.Node
	containers map[string]*container
}

func newNode(b *testing.B, n *system.Node) *node {
	runtime := connect(b, n)
	stock(b, n)
	empty(b, n)
	uuid, holder := grant(b, n, "bench-"+n.Name, 0, share, v1alpha1.Slice{})
	made := &node{Node: n, containers: map[string]*container{}}
	for _, v := range variants {
		pod := sandboxOf("bench-" + v)
		if v == slice {
			holder.holds(pod)
		}
		made.containers[v] = newContainer(b, n, runtime, pod)
		if v == device {
			made.containers[v].gpu(stockKind + "=" + uuid)
		}
	}
	return made
}

// agent starts or stops the node's agent and returns when the runtime has seen it:
// it then takes, or refuses, a container that needs the agent.
func (n *node) agent(b *testing.B, on bool) {
	b.Helper()
	err := n.Agent.EnsureRunning()
	if !on {
		err = n.Agent.Stop(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	await(b, fmt.Sprintf("containerd of %s to know that the agent runs=%t", n.Name, on), func(ctx context.Context) error {
		_, err := n.containers[slice].once(ctx)
		if (err == nil) != on {
			return fmt.Errorf("a container with a slice: %v", err)
		}
		return nil
	})
}

// check fails unless the variant's container is what it is measured as.
func (n *node) check(b *testing.B, variant string) {
	b.Helper()
	s, err := n.containers[variant].inspect(b.Context())
	if err != nil {
		b.Fatalf("%s on %s: %v", variant, n.Name, err)
	}
	limited, gpu := false, false
	for _, m := range s.Mounts {
		limited = limited || m.Destination == layout.Folder
	}
	seen := slices.Contains(s.Process.Env, v1alpha1.EnvVisibleDevices+"="+v1alpha1.EnvVisibleDevicesVoid)
	for _, d := range s.Linux.Devices {
		gpu = gpu || strings.HasPrefix(d.Path, "/dev/nvidia")
	}
	if limited != (variant == slice) || gpu != (variant == slice || variant == device) || seen != (variant != plain) {
		b.Fatalf("%s on %s is not what it is measured as: %+v", variant, n.Name, s)
	}
}

func await(b *testing.B, what string, check func(context.Context) error) {
	b.Helper()
	var last error
	err := wait.PollUntilContextTimeout(b.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		b.Fatalf("waited in vain for %s: %v", what, last)
	}
}
