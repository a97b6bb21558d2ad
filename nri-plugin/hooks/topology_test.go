// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/rdma"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// What a pod requires of its GPUs is checked at the creation of each of its containers, of all
// that it holds on the node, by what is seen now.
func TestCreateRequiredTopology(t *testing.T) {
	pair := &v1alpha1.TopologyStatus{PCIe: []v1alpha1.DeviceSet{"0-1"}, NUMA: []v1alpha1.DeviceSet{"0", "1"}}
	for name, c := range map[string]struct {
		topology string
		status   *v1alpha1.TopologyStatus
		// alone: the pod has one GPU. elsewhere: the other is another container's.
		alone, elsewhere bool
		near             map[string][]string
		says             []string
	}{
		"within":                         {topology: "pcie:required", status: pair},
		"not within":                     {topology: "nvlink:required", status: pair, says: []string{v1alpha1.AnnotationTopology, "requires nvlink", gpu0 + " and " + gpu1 + " are not each linked", "Delete the pod", `create it again with "nvlink"`}},
		"another container's, within":    {topology: "pcie:required", status: pair, elsewhere: true},
		"another container's, elsewhere": {topology: "numa:required", status: pair, elsewhere: true, says: []string{"requires numa", gpu0 + " and " + gpu1 + " are not on one NUMA node"}},
		"nothing is known":               {topology: "pcie:required", says: []string{"requires pcie", "have more than PCIe switches between them"}},
		"linked":                         {topology: "nvlink:required", status: &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1"}}},
		"one GPU":                        {topology: "nvlink:required", alone: true},
		"preferred":                      {topology: "nvlink", status: pair},
		"preferred, RDMA":                {topology: "rdma"},
		"each has RDMA":                  {topology: "rdma:required", near: map[string][]string{gpu0: {"mlx5_0"}, gpu1: {"mlx5_1"}}},
		"one has no RDMA":                {topology: "rdma:required", near: map[string][]string{gpu0: {"mlx5_0"}}, says: []string{"requires rdma", "now " + gpu1 + " has no RDMA device near it"}},
		"one GPU, no RDMA":               {topology: "rdma:required", alone: true, says: []string{"requires rdma", gpu0 + " has no RDMA device"}},
		"unknown":                        {topology: "rack", says: []string{v1alpha1.AnnotationTopology, `"rack"`, "create the pod again"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := connected(t)
			n.gpus.refine = func(s *device.Snapshot) {
				s.Topology = c.status
				for i := range s.Devices {
					s.Devices[i].NICs = c.near[s.Devices[i].UUID]
				}
			}
			shares := twoGPUs
			if c.alone || c.elsewhere {
				shares = share30
			}
			pod := podOf("a", shares)
			pod.Annotations[v1alpha1.AnnotationTopology] = c.topology
			n.ledger.grant(gpu0, slice30(pod))
			if !c.alone {
				other := slice30(pod)
				if c.elsewhere {
					other.Ctr = "other"
				}
				n.ledger.grant(gpu1, other)
			}
			_, err := r.Create(pod, containerOf(pod, "main"))
			if c.says != nil {
				refusedFor(t, err, c.says...)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

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
	must.Do(t, os.Mkdir(nodes, 0o750))
	for i, name := range append(verbs, "") {
		node := "rdma_cm"
		if name != "" {
			node = "uverbs" + string(rune('0'+i))
			class := filepath.Join(n.RDMA.Sys, "class/infiniband_verbs", node)
			must.Do(t, os.MkdirAll(class, 0o750))
			must.Do(t, os.WriteFile(filepath.Join(class, "ibdev"), []byte(name+"\n"), 0o600))
		}
		must.Do(t, os.Symlink("/dev/null", filepath.Join(nodes, node)))
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
			n, r := connected(t)
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
			must.Do(t, err)
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
			n, r := connected(t)
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

// RDMA device nodes are those near the GPUs that the ledger grants, for a container with a slice
// whose pod asks for them, whatever its image, env, annotations and mounts name.
func TestHostileRDMA(t *testing.T) {
	const own, others = "mlx5_0", "mlx5_1"
	for name, c := range map[string]struct {
		shares, ctr, rdma string
		change            func(*api.PodSandbox, *api.Container)
		other             func(*api.ContainerAdjustment)
		nodes             []string
		says              string
	}{
		"asked":                      {shares: share30, ctr: "main", rdma: "near", nodes: []string{"uverbs0", "rdma_cm"}},
		"without a slice":            {ctr: "main", rdma: "near"},
		"a container beside a slice": {shares: share30, ctr: "side", rdma: "near"},
		"another's by name":          {shares: share30, ctr: "main", rdma: others, says: "use near"},
		"another's beside its own":   {shares: share30, ctr: "main", rdma: "near," + others, says: "use near"},
		"another's by its image": {shares: share30, ctr: "main", rdma: "near", nodes: []string{"uverbs0", "rdma_cm"}, change: func(_ *api.PodSandbox, c *api.Container) {
			c.Env = append(c.Env, v1alpha1.EnvNearHCAs+"="+others)
		}},
		"another's by its placement": {shares: share30, ctr: "main", rdma: "near", nodes: []string{"uverbs0", "rdma_cm"}, change: func(p *api.PodSandbox, _ *api.Container) {
			p.Annotations[v1alpha1.AnnotationPlacement] = `{"version":"v1alpha1","containers":{"main":{"devices":["` + gpu1 + `"]}}}`
		}},
		"the node's folder, not asked": {shares: share30, ctr: "main", change: func(_ *api.PodSandbox, c *api.Container) {
			c.Mounts = append(c.Mounts, &api.Mount{Destination: "/dev/infiniband", Source: "/dev/infiniband", Type: "bind", Options: []string{"rbind"}})
		}},
		"its own taken for another's by a plugin": {shares: share30, ctr: "main", rdma: "near", says: "is missing or not ours", other: func(a *api.ContainerAdjustment) {
			a.RemoveDevice("/dev/infiniband/uverbs0")
			a.AddDevice(&api.LinuxDevice{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 193})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := connected(t)
			if c.other != nil {
				connectOther(t, r, c.other)
			}
			hcas(t, n, map[string][]string{gpu0: {own}, gpu1: {others}}, own, others)
			pod := podOf("a", c.shares)
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[v1alpha1.AnnotationRDMA] = c.rdma
			if c.shares != "" {
				n.ledger.grant(gpu0, slice30(pod))
			}
			n.ledger.grant(gpu1, slice30(podOf("neighbour", share30)))
			n.ledger.server = n.ledger.watched.DeepCopy()
			ctr := containerOf(pod, c.ctr)
			if c.change != nil {
				c.change(pod, ctr)
			}
			got, err := r.Create(pod, ctr)
			if c.says != "" {
				refusedFor(t, err, c.says)
				return
			}
			must.Do(t, err)
			var nodes []string
			for _, d := range got.GetLinux().GetDevices() {
				nodes = append(nodes, strings.TrimPrefix(d.GetPath(), "/dev/infiniband/"))
			}
			if !reflect.DeepEqual(nodes, c.nodes) {
				t.Errorf("device nodes %v, want %v", nodes, c.nodes)
			}
			if value, set := env(got)[v1alpha1.EnvNearHCAs]; set && value != own {
				t.Errorf("%s=%s", v1alpha1.EnvNearHCAs, value)
			}
		})
	}
}

// Nothing that a tenant writes holds a container to CPUs, keeps another's from its own, or fails
// another's creation.
func TestHostileCPUs(t *testing.T) {
	forged := func(p *api.PodSandbox, c *api.Container) {
		for _, key := range []string{"cpuset", "linux.resources.cpu.cpus", "cpu.cpus/container.main", "vernier.dev/cpus"} {
			p.Annotations[key] = "0-7"
		}
		c.Env, c.Annotations = append(c.Env, "CPUSET=0-7"), map[string]string{"linux.resources.cpu.cpus": "0-7"}
	}
	n, r := newNode(t), nritest.Start(t)
	twoSockets(t, n)
	n.BindCPUs = true
	connect(t, r, n.Plugin)
	create := func(name, topology string, request int64, change ...func(*api.PodSandbox, *api.Container)) (string, error) {
		t.Helper()
		pod, ctr := asks(name, topology, cpusOfMilli(request, 0))
		for _, f := range change {
			f(pod, ctr)
		}
		n.ledger.grant(gpu1, slice30(pod))
		got, err := r.Create(pod, ctr)
		return got.GetLinux().GetResources().GetCpu().GetCpus(), err
	}
	if cpus, err := create("forged", "", 100, forged); cpus != "" || err != nil {
		t.Errorf("held to %q, %v", cpus, err)
	}
	// One takes what there is of a NUMA node: the next runs on all CPUs, and gets an event.
	if cpus, err := create("greedy", "numa", 3600, forged); cpus != "4-7" || err != nil {
		t.Errorf("held to %q, %v", cpus, err)
	}
	if cpus, err := create("honest", "numa", 100); cpus != "" || err != nil || !strings.Contains(strings.Join(n.events.said, "\n"), "container main is not bound to the CPUs of NUMA node 1") {
		t.Errorf("held to %q, %v, events %q", cpus, err, n.events.said)
	}
	// A resize to what cannot be read changes nothing of what is known.
	pod, ctr := asks("greedy", "numa", nil)
	for _, cpus := range []string{"all", "0-", "-1", "4-7,x"} {
		if updates, err := n.UpdateContainer(t.Context(), pod, ctr, &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: cpus}}); len(updates) != 0 || err != nil {
			t.Errorf("%q: %v, %v", cpus, updates, err)
		}
	}
	if e, _ := n.Table.Get(ctr.Id); e.CPUs.Set.String() != "4-7" {
		t.Errorf("entered with %s", e.CPUs.Set)
	}
}

// Where another plugin gives containers their CPUs too, one that is bound is refused by the
// runtime, and nobody else's.
func TestHostileCPUsOfAnotherPlugin(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	twoSockets(t, n)
	n.BindCPUs = true
	connect(t, r, n.Plugin)
	connectOther(t, r, func(a *api.ContainerAdjustment) { a.SetLinuxCPUSetCPUs("0-3") })
	for topology, refused := range map[string]bool{"numa": true, "": false, "nvlink": false} {
		pod, ctr := asks("a"+topology, topology, cpusOfMilli(100, 0))
		n.ledger.grant(gpu1, slice30(pod))
		got, err := r.Create(pod, ctr)
		if refused != (err != nil) || err == nil && got.GetLinux().GetResources().GetCpu().GetCpus() != "0-3" {
			t.Errorf("topology %q: %v, held to %q", topology, err, got.GetLinux().GetResources().GetCpu().GetCpus())
		}
		if refused && n.Table.Holds(types.UID(pod.Uid)) {
			// The runtime undoes it.
			r.RemoveContainer(t, pod, ctr)
		}
	}
	plain := podOf("plain", "")
	if _, err := r.Create(plain, containerOf(plain, "main")); err != nil {
		t.Error(errors.Join(errors.New("without a slice"), err))
	}
}
