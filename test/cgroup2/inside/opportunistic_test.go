// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/test/must"
)

const (
	mib  = 1 << 20
	busy = "while :; do :; done"
	// busier is more than the cap lets be.
	busier = busy + " & " + busy + " & " + busy
	// period of quotas, in µs.
	period = 100_000
)

// asked is what the kubelet asks for: a request of one processor, and a limit of memory.
func asked(memory int64) *api.LinuxResources {
	return &api.LinuxResources{
		Cpu:     &api.LinuxCPU{Shares: api.UInt64(1024), Period: api.UInt64(period)},
		Memory:  &api.LinuxMemory{Limit: api.Int64(memory)},
		Unified: map[string]string{},
	}
}

func ninety(memory int64) string { return strconv.FormatInt(memory/10*9/4096*4096, 10) }

// crowd is this machine's processors beside everybody else, who use as much of them as
// the test says: a machine whose every instruction is translated is never quiet itself.
type crowd struct {
	*cgroup.Processors
	node        *node
	others      batch.MilliCPU
	used        time.Duration // by the others
	begun, last time.Time
}

func (c *crowd) Node() (cgroup.Load, error) {
	real, err := c.Processors.Node()
	now := time.Now()
	c.used += now.Sub(c.last) * time.Duration(c.others) / 1000
	c.last = now
	busy := c.used
	for _, has := range c.node.Containers() {
		t, _ := c.Container(has.PID, has.ID) // 0 once it has ended
		busy += t
	}
	return cgroup.Load{CPUs: real.CPUs, Busy: uint64(busy), All: uint64(now.Sub(c.begun)) * uint64(real.CPUs)}, err
}

// node is the keeper on this machine, with runc for a runtime.
type node struct {
	*batch.Keeper
	*crowd
	t          *testing.T
	containers map[string]*container
	running    []batch.Container
}

// On two processors, of which opportunistic containers and others together get 1.6.
const (
	quiet, loud         batch.MilliCPU = 400, 1200
	whenQuiet, whenLoud batch.MilliCPU = 1200, 400
)

func newNode(t *testing.T) *node {
	processors := must.Get(cgroup.NewProcessors("/proc"))(t)
	if load, err := processors.Node(); err != nil || load.CPUs != 2 || !processors.V2() {
		t.Fatalf("this machine has %d processors, not 2, or control groups of version 1; remedy: make test-cgroup2 (%v)", load.CPUs, err)
	}
	n := &node{t: t, containers: map[string]*container{}}
	begun := time.Now().Add(-time.Second)
	n.crowd = &crowd{Processors: processors, node: n, others: quiet, begun: begun, last: begun}
	n.Keeper = &batch.Keeper{
		Times: n.crowd, Cap: batch.Cap{Share: 80}, Log: logr.Discard(),
		Containers: func() []batch.Container { return n.running },
		Limit:      func(batch.Container) (batch.MilliCPU, bool) { return 0, true },
		Update: func(all []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
			for _, u := range all {
				if err = n.containers[u.GetContainerId()].update(u.GetLinux().GetResources()); err != nil {
					t.Error(err)
					failed = append(failed, u)
				}
			}
			return failed, err
		},
	}
	return n
}

// awaitCap looks every second until the cap is about that, and, where there is a container, until that
// uses it and no more.
func (n *node) awaitCap(want batch.MilliCPU) {
	n.t.Helper()
	tick, late := time.NewTicker(time.Second), time.After(2*time.Minute)
	defer tick.Stop()
	for {
		select {
		case at := <-tick.C:
			n.Look(at)
			u := n.Use()
			n.t.Logf("cap %d, used %d", u.Cap, u.Used)
			if near(u.Cap, want) && (u.Containers == 0 || u.Used > u.Cap*8/10 && u.Used < u.Cap*11/10) {
				return
			}
		case <-late:
			n.t.Fatalf("waited in vain for a cap of %d that is used; last %+v", want, n.Use())
		}
	}
}

// near is within less than the keeper lets pass.
func near(got, want batch.MilliCPU) bool { return got > want-100 && got < want+100 }

// start makes an opportunistic container as the runtime and the plugin do.
func (n *node) start(id, script string, asked *api.LinuxResources) *container {
	adjust := &api.ContainerAdjustment{}
	n.Adjust(&api.Container{Linux: &api.LinuxContainer{Resources: asked}}, adjust)
	c := start(n.t, id, script, asked, adjust)
	n.containers[id] = c
	n.running = append(n.running, batch.Container{ID: id, PID: c.pid, Quota: batch.QuotaOf(merged(asked, adjust.GetLinux().GetResources())), Seen: true})
	return c
}

// What the kernel has of a container that is opportunistic, and of one beside it; what
// it has when the kubelet changes both; and when others begin to work.
func TestOpportunistic(t *testing.T) {
	n := newNode(t)
	n.awaitCap(whenQuiet)
	const memory = 64 * mib
	c := n.start("opportunistic", busier, asked(memory))
	beside := start(t, "guaranteed", "/busybox sleep 1000", asked(memory), &api.ContainerAdjustment{})

	c.want("created", map[string]string{"cpu.weight": "1", "memory.high": ninety(memory), "memory.max": strconv.Itoa(memory)})
	usual := beside.read("cpu.weight")
	if q := batch.MilliCPU(c.quota()); !near(q, whenQuiet) || usual == "1" {
		t.Errorf("created with a quota of %d, want %d", q, whenQuiet)
	}
	unchanged := map[string]string{"cpu.weight": usual, "cpu.max": fmt.Sprintf("max %d", period), "memory.high": "max", "memory.max": strconv.Itoa(memory)}
	beside.want("created", unchanged)
	c.wantScore(1000)
	beside.wantScore(0)

	// It works as hard as it may.
	n.awaitCap(whenQuiet)
	if c.count("cpu.stat", "nr_throttled") == 0 {
		t.Error("the kernel has not held it")
	}
	n.others = loud
	n.awaitCap(whenLoud)
	if q := batch.MilliCPU(c.quota()); !near(q, whenLoud) {
		t.Errorf("others are loud: a quota of %d, want %d", q, whenLoud)
	}

	// The kubelet gives both more.
	more := asked(2 * memory)
	more.Cpu.Shares, more.Cpu.Quota = api.UInt64(4096), api.Int64(8*period)
	before := c.quota()
	ours := n.Resized(n.running[0], more)
	for c, said := range map[*container]*api.LinuxResources{c: merged(more, ours.GetLinux().GetResources()), beside: more} {
		must.Do(t, c.update(said))
	}
	c.want("resized", map[string]string{"cpu.weight": "1", "memory.high": ninety(2 * memory), "memory.max": strconv.Itoa(2 * memory)})
	if after := c.quota(); after != before {
		t.Errorf("resized by the kubelet its quota became %d from %d", after, before)
	}
	unchanged["cpu.max"], unchanged["memory.max"], unchanged["cpu.weight"] = fmt.Sprintf("%d %d", 8*period, period), strconv.Itoa(2*memory), beside.read("cpu.weight")
	beside.want("resized", unchanged)
	if unchanged["cpu.weight"] == usual {
		t.Errorf("the weight of the one beside it stayed %s", usual)
	}
}

// Near its memory limit an opportunistic container is slowed down, not killed.
func TestMemoryHigh(t *testing.T) {
	n := newNode(t)
	const memory = 64 * mib
	c := n.start("greedy", "/busybox dd if=/dev/zero of=/tmp/file bs=1048576 count=60; echo done >/tmp/done; /busybox sleep 1000", asked(memory))
	done := filepath.Join("/proc", fmt.Sprint(c.pid), "root", "tmp/done")
	tick, late := time.NewTicker(100*time.Millisecond), time.After(2*time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("it did not end; memory.events: %s", c.read("memory.events"))
		}
		if _, err := os.Stat(done); err == nil {
			break
		}
	}
	if c.count("memory.events", "high") == 0 || c.count("memory.events", "oom_kill") != 0 {
		t.Errorf("it was not slowed down, or was killed: %s", c.read("memory.events"))
	}
}
