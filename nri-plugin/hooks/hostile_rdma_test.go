// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/nritest"
)

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
			n, r := newNode(t), nritest.Start(t)
			connect(t, r, n.Plugin)
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
			if err != nil {
				t.Fatal(err)
			}
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
	// One takes what there is of a NUMA node: the next runs on all CPUs, and is told.
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
