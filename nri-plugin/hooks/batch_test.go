// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// processors of a node with ten of them, of which everybody else uses as many as
// the test says.
type processors struct{ load cgroup.Load }

func (p *processors) Node() (cgroup.Load, error)                    { return p.load, nil }
func (*processors) Container(uint32, string) (time.Duration, error) { return 0, nil }
func (*processors) V2() bool                                        { return true }
func (p *processors) pass(others uint64)                            { p.load.Busy, p.load.All = p.load.Busy+others, p.load.All+10 }

// batched gives a node's plugin a keeper whose clock the test turns.
func batched(n *testNode, p *Plugin) (look func(others uint64)) {
	times := &processors{cgroup.Load{CPUs: 10, Busy: 1, All: 10}}
	keeper := &batch.Keeper{
		Times: times, Cap: batch.Cap{Share: 80}, Containers: p.Containers.Batch, Log: logr.Discard(),
		Limit: func(batch.Container) (batch.MilliCPU, bool) { return 0, true },
	}
	p.Batch = keeper
	at := time.Unix(0, 0)
	keeper.Look(at)
	return func(others uint64) {
		times.pass(others)
		at = at.Add(time.Minute)
		keeper.Update = n.update
		keeper.Look(at)
	}
}

func quotaOf(r *api.LinuxResources) int64 { return r.GetCpu().GetQuota().GetValue() }

// An opportunistic container has little weight and a part of the cap from its
// creation on; the cap follows while it runs, through the real protocol; what the
// kubelet sets keeps below it; and an agent that is started again takes it up from
// what the runtime has. A container beside it is none of this.
func TestOpportunistic(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	look := batched(n, n.Plugin)
	look(4)
	l := connect(t, r, n.Plugin)
	n.update = l.Update

	pods := map[string]*api.PodSandbox{}
	for _, name := range []string{"batch", "online"} {
		pods[name] = podOf(name, share30)
		n.ledger.grant(map[string]string{"batch": gpu0, "online": gpu1}[name], slice30(pods[name]))
	}
	pods["batch"].Annotations[v1alpha1.AnnotationQoS] = string(v1alpha1.QoSOpportunistic)
	containers := map[string]*api.Container{}
	for name, pod := range pods {
		c := containerOf(pod, "main")
		c.Linux.Resources.Cpu = &api.LinuxCPU{Shares: api.UInt64(2048)}
		adjust := must.Get(r.Create(pod, c))(t)
		got := adjust.GetLinux().GetResources()
		if name == "online" {
			if got.GetCpu().GetShares() != nil || got.GetCpu().GetQuota() != nil || len(got.GetUnified()) > 0 || adjust.GetLinux().GetOomScoreAdj() != nil {
				t.Errorf("the guaranteed container is given %+v", got)
			}
		} else if got.GetCpu().GetShares().GetValue() != 2 || quotaOf(got) != 400_000 {
			t.Errorf("it is created with %+v, want the least weight and 4 of 10 processors", got)
		}
		// As containerd then has it.
		c.Env = append(c.Env, v1alpha1.EnvSlice+"="+pod.Uid)
		c.Linux.Resources.Cpu.Quota = got.GetCpu().GetQuota()
		must.Do(t, r.StartContainer(pod, c))
		containers[name] = c
	}
	c := containers["batch"]

	look(6)
	if got := quotaOf(r.Updated(c.Id)); got != 200_000 {
		t.Errorf("others are busy: %d, want 2 processors", got)
	}
	wanted := &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(4096), Quota: api.Int64(800_000), Period: api.UInt64(100_000)}}
	if got := r.Update(t, pods["batch"], c, wanted); quotaOf(got) != 200_000 || got.GetCpu().GetShares().GetValue() != 2 {
		t.Errorf("the kubelet wants more: %+v", got)
	}
	if got := r.Update(t, pods["online"], containers["online"], wanted); quotaOf(got) != 800_000 || got.GetCpu().GetShares().GetValue() != 4096 {
		t.Errorf("the kubelet wants more for the guaranteed one: %+v", got)
	}

	// Invariant 4.
	l.disconnect()
	c.Linux.Resources.Cpu.Quota = api.Int64(200_000)
	for _, c := range containers {
		c.State = api.ContainerState_CONTAINER_RUNNING
	}
	r.Lists([]*api.PodSandbox{pods["batch"], pods["online"]}, []*api.Container{c, containers["online"]})
	next := n.restarted()
	look = batched(n, next)
	n.update = connect(t, r, next).Update
	if all := next.Containers.Batch(); len(all) != 1 || all[0].ID != c.Id || all[0].Quota.US != 200_000 || all[0].Seen {
		t.Fatalf("taken up: %+v", all)
	}
	look(3)
	if got := quotaOf(r.Updated(c.Id)); got != 500_000 {
		t.Errorf("after a restart: %d, want 5 processors", got)
	}
	if r.Updated(containers["online"].Id) != nil {
		t.Error("the guaranteed container was changed")
	}
}
