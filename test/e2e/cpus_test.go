// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// cpusOf are the CPUs of one of two NUMA nodes, each with half of the machine's, which are
// numbered from 0: as a list, and how many they are.
func cpusOf(node int32) (string, int) {
	n := runtime.NumCPU() / 2
	first, last := int(node)*n, int(node)*n+n-1
	if first == last {
		return itoa(int64(first)), n
	}
	return fmt.Sprintf("%d-%d", first, last), n
}

// twoSockets makes a sysfs with these NUMA nodes: the machine may have one.
func twoSockets(dir string) error {
	var err error
	for node := range int32(2) {
		folder := filepath.Join(dir, fmt.Sprintf("devices/system/node/node%d", node))
		cpus, _ := cpusOf(node)
		err = errors.Join(err, os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "cpulist"), []byte(cpus+"\n"), 0o644))
	}
	return err
}

// withStatic has the node's kubelet give CPUs under policy static, those of NUMA node 1, until
// the test ends.
func withStatic(t *testing.T, n *system.Node) {
	t.Helper()
	config := filepath.Join(n.Dir(), "kubelet.yaml")
	before := must.Get(os.ReadFile(config))(t)
	restart := func(ctx context.Context, text []byte) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := n.Kubelet.Stop(ctx); err != nil {
			return err
		}
		// A kubelet refuses to start on what one with another policy has written.
		if err := errors.Join(os.RemoveAll(filepath.Join(n.Dir(), "kubelet", "cpu_manager_state")), os.WriteFile(config, text, 0o644)); err != nil {
			return err
		}
		return n.RestartKubelet(ctx)
	}
	t.Cleanup(func() {
		if err := restart(context.Background(), before); err != nil {
			t.Errorf("putting the kubelet back: %v", err)
		}
	})
	reserved, _ := cpusOf(0)
	must.Do(t, restart(t.Context(), fmt.Appendf(before[:len(before):len(before)], "cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 1s\nreservedSystemCPUs: %q\n", reserved)))
}

// awaitAligned waits until the ledger says so of the pod's slice.
func awaitAligned(t *testing.T, p *corev1.Pod, want *bool) {
	t.Helper()
	text := func(b *bool) string {
		if b == nil {
			return "absent"
		}
		return fmt.Sprint(*b)
	}
	await(t, fmt.Sprintf("the slice of pod %s to have aligned %s", p.Name, text(want)), func() (bool, string) {
		for _, s := range ledger(t, large).Status.Slices {
			if s.Pod == p.UID {
				return text(s.Aligned) == text(want), text(s.Aligned)
			}
		}
		return false, "not attached"
	})
}

// heldTo are the CPUs that the kernel holds a container to.
func heldTo(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	return hostSideOf(t, p).read(t, "cpuset", "cpuset.cpus", "cpuset.cpus")
}

// ofCPUs asks for so many CPUs, and is guaranteed them.
func (p *pod) ofCPUs(n int) *pod {
	p.main().Resources.Limits[corev1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	p.main().Resources.Limits[corev1.ResourceMemory] = resource.MustParse("64Mi")
	return p
}

// Under the kubelet's CPU manager policy none, a container that asks for it is bound to the
// CPUs beside its GPU. Under static the kubelet chooses the CPUs, and the GPU of a pod that
// requires it follows them.
func TestCPUsBesideTheGPU(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one CPU cannot be on two NUMA nodes")
	}
	_, cpus := cpusOf(0)
	near := func(name string) *pod {
		return newPod(name).share(10, 5).annotate(v1alpha1.AnnotationTopology, "numa").on(large)
	}
	device := map[int32]v1alpha1.DeviceStatus{}
	for _, d := range ledger(t, large).Status.Devices {
		device[*d.NUMA] = d
	}
	for node, d := range device {
		bound := awaitReady(t, create(t, near(fmt.Sprintf("bound-%d", node)).annotate(v1alpha1.AnnotationGPUUUID, d.UUID)))
		if want, _ := cpusOf(node); heldTo(t, bound) != want {
			t.Errorf("beside a GPU of NUMA node %d it is held to CPUs %q, want %q", node, heldTo(t, bound), want)
		}
		awaitAligned(t, bound, ptr(true))
		remove(t, bound)
	}
	wide := near("wide")
	wide.main().Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI)}
	unbound := awaitReady(t, create(t, wide))
	awaitEvent(t, unbound, "CPUsNotBound", "more than 90 %")
	awaitAligned(t, unbound, nil)
	remove(t, unbound)

	withStatic(t, sys.Node(large))
	// Another pod on the GPU of node 0 has the next placed beside it.
	first := awaitReady(t, create(t, newPod("first").share(30, 10).annotate(v1alpha1.AnnotationGPUUUID, device[0].UUID).on(large)))
	awaitAligned(t, first, ptr(false))
	follower := near("follower").annotate(v1alpha1.AnnotationTopology, "numa:required").ofCPUs(cpus)
	made := create(t, follower)
	awaitEvent(t, made, "given the pod CPUs of NUMA node 1 while GPU "+device[0].UUID+" is of NUMA node 0")
	awaitEvent(t, made, "VernierMoved", "CPUs of NUMA node 1 of node "+large, "GPU 1")
	awaitReady(t, made)
	if want, _ := cpusOf(1); heldTo(t, made) != want {
		t.Errorf("held to CPUs %q, want the kubelet's %q", heldTo(t, made), want)
	}
	awaitAligned(t, made, ptr(true))
	// What is left of the CPUs for the other pod is beside its GPU.
	awaitAligned(t, first, ptr(true))
	await(t, "no pod to be misaligned any more", func() (bool, string) {
		l := ledger(t, large)
		on := ""
		for _, d := range l.Spec.Devices {
			for _, s := range d.Slices {
				if s.Pod == made.UID {
					on += d.UUID
				}
			}
		}
		return len(l.Status.Misaligned) == 0 && on == device[1].UUID, fmt.Sprintf("%+v, on %s", l.Status.Misaligned, on)
	})
}
