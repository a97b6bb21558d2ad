// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/cgroup"
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

// node is the keeper on this machine, with runc for a runtime.
type node struct {
	*batch.Keeper
	t          *testing.T
	processors *cgroup.Processors
	containers map[string]*container
	running    []batch.Container
}

func newNode(t *testing.T) *node {
	processors, err := cgroup.NewProcessors("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if !processors.V2() {
		t.Fatal("this machine has control groups of version 1; remedy: make test-cgroup2")
	}
	n := &node{t: t, processors: processors, containers: map[string]*container{}}
	n.Keeper = &batch.Keeper{
		Times: processors, Cap: batch.Cap{Share: 80}, Log: logr.Discard(),
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

// start makes an opportunistic container as the runtime and the plugin do.
func (n *node) start(id, script string, asked *api.LinuxResources) *container {
	adjust := &api.ContainerAdjustment{}
	n.Adjust(&api.Container{Linux: &api.LinuxContainer{Resources: asked}}, adjust)
	c := start(n.t, id, script, asked, adjust)
	n.containers[id] = c
	n.running = append(n.running, batch.Container{ID: id, PID: c.pid, Quota: batch.QuotaOf(merged(asked, adjust.GetLinux().GetResources())), Seen: true})
	return c
}

// lookUntil looks every second until it holds.
func (n *node) lookUntil(what string, holds func(batch.Use) bool) batch.Use {
	n.t.Helper()
	tick, late := time.NewTicker(time.Second), time.After(2*time.Minute)
	defer tick.Stop()
	for {
		select {
		case at := <-tick.C:
			n.Look(at)
			u := n.Use()
			n.t.Logf("cap %d, used %d", u.Cap, u.Used)
			if holds(u) {
				return u
			}
		case <-late:
			n.t.Fatalf("waited in vain: %s; last %+v", what, n.Use())
		}
	}
}

// quota is the container's own, in thousandths of a processor; 0 is none.
func (c *container) quota() int {
	c.t.Helper()
	fields := strings.Fields(c.read("cpu.max"))
	if len(fields) != 2 || fields[1] != strconv.Itoa(period) {
		c.t.Fatalf("cpu.max is %q", fields)
	}
	n, _ := strconv.Atoi(fields[0]) // "max"
	return n * 1000 / period
}

// What the kernel has of a container that is opportunistic, and of one beside it; what
// it has when the kubelet changes both; and when others begin to work.
func TestOpportunistic(t *testing.T) {
	n := newNode(t)
	n.lookUntil("a cap", func(u batch.Use) bool { return u.Cap > 0 })
	const memory = 64 * mib
	c := n.start("opportunistic", busier, asked(memory))
	beside := start(t, "guaranteed", "/busybox sleep 1000", asked(memory), &api.ContainerAdjustment{})

	c.want("created", map[string]string{"cpu.weight": "1", "memory.high": ninety(memory), "memory.max": strconv.Itoa(memory)})
	usual := beside.read("cpu.weight")
	if first, had := c.quota(), int(n.Use().Cap); first == 0 || first > had || usual == "1" {
		t.Errorf("created with a quota of %d, the cap being %d; the one beside it has weight %s", first, had, usual)
	}
	unchanged := map[string]string{"cpu.weight": usual, "cpu.max": fmt.Sprintf("max %d", period), "memory.high": "max", "memory.max": strconv.Itoa(memory)}
	beside.want("created", unchanged)
	for id, want := range map[*container]string{c: "1000", beside: "0"} {
		score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", id.pid))
		if err != nil || strings.TrimSpace(string(score)) != want {
			t.Errorf("%s: oom_score_adj %q, %v; want %s", id.id, score, err, want)
		}
	}

	// It works as hard as it may.
	used := n.lookUntil("it to use what it may and no more", func(u batch.Use) bool { return u.Used > u.Cap*8/10 && u.Used < u.Cap*11/10 })
	if c.count("cpu.stat", "nr_throttled") == 0 {
		t.Error("the kernel has not held it")
	}
	others := exec.Command("busybox", "sh", "-c", busy)
	if err := others.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = others.Process.Kill()
		_ = others.Wait()
	})
	less := n.lookUntil("the cap to fall", func(u batch.Use) bool { return u.Cap < used.Cap*8/10 && u.Used < u.Cap*11/10 })
	if q := c.quota(); q > int(less.Cap) || q < int(less.Cap)*9/10 {
		t.Errorf("a quota of %d, the cap being %d", q, less.Cap)
	}

	// The kubelet gives both more.
	more := asked(2 * memory)
	more.Cpu.Shares, more.Cpu.Quota = api.UInt64(4096), api.Int64(8*period)
	before := c.quota()
	ours := n.Resized(n.running[0], more)
	for c, said := range map[*container]*api.LinuxResources{c: merged(more, ours.GetLinux().GetResources()), beside: more} {
		if err := c.update(said); err != nil {
			t.Fatal(err)
		}
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
	done := fmt.Sprintf("/proc/%d/root/tmp/done", c.pid)
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
