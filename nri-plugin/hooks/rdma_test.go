// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/rdma"
	"vernier.dev/vernier/test/nritest"
)

const twoGPUs = `{"version":"v1alpha1","containers":{"main":{"gpus":2,"core":30,"memPercent":25}}}`

// hcas gives the test's devices RDMA devices, of which some have device nodes.
func hcas(t *testing.T, n *testNode, near map[string][]string, verbs ...string) {
	t.Helper()
	n.gpus.refine = func(s *device.Snapshot) {
		for i := range s.Devices {
			s.Devices[i].NICs = near[s.Devices[i].UUID]
		}
	}
	n.RDMA = rdma.Host{Sys: t.TempDir(), Dev: t.TempDir(), Inject: true}
	nodes := filepath.Join(n.RDMA.Dev, "infiniband")
	if err := os.Mkdir(nodes, 0o750); err != nil {
		t.Fatal(err)
	}
	for i, name := range append(verbs, "") {
		node := "rdma_cm"
		if name != "" {
			node = "uverbs" + string(rune('0'+i))
			class := filepath.Join(n.RDMA.Sys, "class/infiniband_verbs", node)
			if err := os.MkdirAll(class, 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(class, "ibdev"), []byte(name+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("/dev/null", filepath.Join(nodes, node)); err != nil {
			t.Fatal(err)
		}
	}
}

// Each container learns which RDMA devices are near its GPUs, and has their nodes where its
// pod asks for them.
func TestCreateNearRDMA(t *testing.T) {
	near := map[string][]string{gpu0: {"mlx5_1", "mlx5_0"}, gpu1: {"mlx5_0", "mlx5_2"}}
	for name, c := range map[string]struct {
		rdma  string
		near  map[string][]string
		verbs []string
		never bool
		env   string
		nodes []string
		says  []string
	}{
		"named":                  {near: near, env: "mlx5_1,mlx5_0,mlx5_2"},
		"none":                   {},
		"asked":                  {rdma: "near", near: near, verbs: []string{"mlx5_0", "other", "mlx5_1", "mlx5_2"}, env: "mlx5_1,mlx5_0,mlx5_2", nodes: []string{"uverbs2", "uverbs0", "uverbs3", "rdma_cm"}},
		"asked, of one":          {rdma: "near", near: map[string][]string{gpu1: {"mlx5_0"}}, verbs: []string{"mlx5_0"}, env: "mlx5_0", nodes: []string{"uverbs0", "rdma_cm"}},
		"asked, and none":        {rdma: "near", says: []string{v1alpha1.AnnotationRDMA, gpu0, gpu1, "none with a port that is up", "without the annotation"}},
		"asked, and no node":     {rdma: "near", near: near, verbs: []string{"mlx5_0"}, says: []string{v1alpha1.AnnotationRDMA, "mlx5_1 has no device node", "ib_uverbs"}},
		"asked, and not allowed": {rdma: "near", near: near, never: true, verbs: []string{"mlx5_0", "mlx5_1", "mlx5_2"}, says: []string{v1alpha1.AnnotationRDMA, "node.injectRDMA", "without the annotation"}},
		"named, not allowed":     {near: near, never: true, env: "mlx5_1,mlx5_0,mlx5_2"},
		"unknown":                {rdma: "all", near: near, says: []string{v1alpha1.AnnotationRDMA, `"all"`, "use near"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			connect(t, r, n.Plugin)
			hcas(t, n, c.near, c.verbs...)
			n.RDMA.Inject = !c.never
			pod := podOf("a", twoGPUs)
			pod.Annotations[v1alpha1.AnnotationRDMA] = c.rdma
			n.ledger.grant(gpu0, slice30(pod))
			n.ledger.grant(gpu1, slice30(pod))
			got, err := r.Create(pod, containerOf(pod, "main"))
			if c.says != nil {
				refusedFor(t, err, c.says...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if value, set := env(got)[v1alpha1.EnvNearHCAs]; value != c.env || set != (c.env != "") {
				t.Errorf("environment %q, want %q", value, c.env)
			}
			nodes := got.GetLinux().GetDevices()
			if len(nodes) != len(c.nodes) {
				t.Fatalf("device nodes %v, want %v", nodes, c.nodes)
			}
			for i, d := range nodes {
				if d.GetPath() != "/dev/infiniband/"+c.nodes[i] || d.GetType() != "c" || d.GetMajor() != 1 || d.GetMinor() != 3 {
					t.Errorf("device node %v, want %s", d, c.nodes[i])
				}
			}
		})
	}
}

// What another plugin takes away, or puts in its place, is noticed.
func TestVetoWithoutRDMANode(t *testing.T) {
	for name, other := range map[string]func(*api.ContainerAdjustment){
		"taken away": func(a *api.ContainerAdjustment) { a.RemoveDevice("/dev/infiniband/uverbs0") },
		"in its place": func(a *api.ContainerAdjustment) {
			a.RemoveDevice("/dev/infiniband/uverbs0")
			a.AddDevice(&api.LinuxDevice{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 1, Minor: 5})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			connect(t, r, n.Plugin)
			connectOther(t, r, other)
			hcas(t, n, map[string][]string{gpu0: {"mlx5_0"}}, "mlx5_0")
			pod := podOf("a", share30)
			pod.Annotations[v1alpha1.AnnotationRDMA] = "near"
			n.ledger.grant(gpu0, slice30(pod))
			_, err := r.Create(pod, containerOf(pod, "main"))
			refusedFor(t, err, "/dev/infiniband/uverbs0 is missing or not ours")
		})
	}
}
