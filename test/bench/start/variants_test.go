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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	uuid, holder := grant(b, n)
	shares, err := (&v1alpha1.Shares{Version: v1alpha1.Version, Containers: map[string]v1alpha1.Share{containerName: share}}).Encode()
	if err != nil {
		b.Fatal(err)
	}
	made := &node{Node: n, containers: map[string]*container{}}
	for _, v := range variants {
		pod := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "bench-" + v, Namespace: metav1.NamespaceDefault, Uid: "bench-" + v}}
		if v == slice {
			pod.Metadata.Uid = string(holder.UID)
			pod.Annotations = map[string]string{
				v1alpha1.AnnotationShares:          shares,
				v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue,
			}
		}
		made.containers[v] = newContainer(b, n, runtime, pod)
		if v == device {
			made.containers[v].config.CDIDevices = []*cri.CDIDevice{{Name: stockKind + "=" + uuid}}
		}
	}
	return made
}

// grant gives a pod that nobody starts a slice of the node's GPU, as the allocator
// would; the pod is there because the agent takes slices of vanished pods back.
func grant(b *testing.B, n *system.Node) (uuid string, holder *corev1.Pod) {
	b.Helper()
	pods := sys.Kube.CoreV1().Pods(metav1.NamespaceDefault)
	holder, err := pods.Create(b.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bench-" + n.Name},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "bench/never"}},
			Containers:      []corev1.Container{{Name: containerName, Image: system.DemoImage}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := pods.Delete(context.Background(), holder.Name, metav1.DeleteOptions{}); err != nil {
			b.Error(err)
		}
	})
	await(b, "the ledger of "+n.Name+" to take a slice", func(ctx context.Context) error {
		l := &v1alpha1.SliceLedger{}
		if err := sys.Client.Get(ctx, client.ObjectKey{Name: n.Name}, l); err != nil {
			return err
		}
		d := l.Status.Devices[0]
		uuid = d.UUID
		l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: d.UUID, Core: v1alpha1.WholeGPU, Mem: d.Mem, Slices: []v1alpha1.Slice{{
			Pod: holder.UID, Owner: holder.Namespace + "/" + holder.Name, Ctr: containerName, Core: share.Core, Mem: share.MemMiB,
		}}}}
		return sys.Client.Update(ctx, l)
	})
	return uuid, holder
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
