// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/test/must"
)

// crowd stands in for everybody else on a node: it puts what they would make of it
// in front of the node's /proc/stat, where one machine is all nodes and more
// besides. What the pod uses is added to it, as the kernel would.
type crowd struct {
	cpus int
	// busy is how many of the processors they use, in percent of the node.
	busy atomic.Int64
}

func newCrowd(t *testing.T, pod func() time.Duration) *crowd {
	t.Helper()
	processors := must.Get(cgroup.NewProcessors("/proc"))(t)
	load := must.Get(processors.Node())(t)
	c, file := &crowd{cpus: load.CPUs}, filepath.Join(t.TempDir(), "stat")
	var used time.Duration // of all processors, by the others
	begun := time.Now()
	last := begun
	write := func(now time.Time) {
		used += now.Sub(last) * time.Duration(int(c.busy.Load())*c.cpus) / 100
		last = now
		// In ticks of 10 ms. Fields of one width: a reader sees one or the other.
		busy := int64((used + pod()) / (10 * time.Millisecond))
		all := int64(now.Sub(begun)/(10*time.Millisecond)) * int64(c.cpus)
		text := fmt.Sprintf("cpu  %012d 0 0 %012d 0 0 0 0 0 0\n", busy+1, max(all-busy, 0))
		for i := range c.cpus {
			text += fmt.Sprintf("cpu%d 0 0 0 0 0 0 0 0 0 0\n", i)
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
		if err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
		must.Report(t, err)
	}
	write(begun)
	namespace := fmt.Sprintf("--mount=/proc/%d/ns/mnt", sys.Node(cut).Holder.PID)
	mount := func(args ...string) {
		if out, err := exec.Command("nsenter", append([]string{namespace, "--"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	mount("mount", "--bind", file, "/proc/stat")
	tick, ended, done := time.NewTicker(100*time.Millisecond), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case now := <-tick.C:
				write(now)
			case <-ended:
				return
			}
		}
	}()
	t.Cleanup(func() {
		mount("umount", "/proc/stat")
		tick.Stop()
		close(ended)
		<-done
	})
	return c
}

// hostSide reads the files of a container's cgroups, by controller and name.
type hostSide struct {
	pid int
	id  string
}

func hostSideOf(t *testing.T, p *corev1.Pod) hostSide {
	t.Helper()
	id := strings.TrimPrefix(get(t, p).Status.ContainerStatuses[0].ContainerID, "containerd://")
	running := must.Get(sys.Node(get(t, p).Spec.NodeName).Containers(t.Context(), sys, p.UID))(t)
	return hostSide{pid: running[id], id: id}
}

// read is a file of version 1 or 2, whichever the machine has the controller in.
func (h hostSide) read(t *testing.T, controller, v1, v2 string) string {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", h.pid)))(t)
	dir, name := "", v2
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if fields[0] == "0" && dir == "" {
			dir = filepath.Join("/sys/fs/cgroup", fields[2])
		}
		if fields[1] == controller {
			dir, name = filepath.Join("/sys/fs/cgroup", controller, fields[2]), v1
		}
	}
	value := must.Get(os.ReadFile(filepath.Join(dir, name)))(t)
	return strings.TrimSpace(string(value))
}

// quota in percent of a processor; 0 is none.
func (h hostSide) quota(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.Fields(h.read(t, "cpu", "cpu.cfs_quota_us", "cpu.max"))[0])
	if err != nil || n < 0 {
		return 0
	}
	return n / 1000
}

// An opportunistic pod that works as hard as it can yields: it has the least weight,
// its memory goes first, and its quota follows what everybody else uses, also after
// the agent died, which takes up what it finds. A guaranteed pod beside it has what
// the kubelet gave it, and so have both pods their lives.
func TestOpportunistic(t *testing.T) {
	t.Parallel()
	cutting.Lock()
	t.Cleanup(cutting.Unlock)
	var burner atomic.Pointer[hostSide]
	processors := must.Get(cgroup.NewProcessors("/proc"))(t)
	others := newCrowd(t, func() time.Duration {
		if h := burner.Load(); h != nil {
			used, _ := processors.Container(uint32(h.pid), h.id) // 0 once it has ended
			return used
		}
		return 0
	})
	agent := sys.Node(cut).Agent
	capacity := 100 * others.cpus
	awaitCap := func(what string, least, most int) {
		t.Helper()
		limit := regexp.MustCompile(`vernier_node_opportunistic_cpu_limit_cores\{[^}]*\} (\S+)`)
		await(t, what, func() (bool, string) {
			text, err := agent.Metrics(t.Context())
			if err != nil {
				return false, err.Error()
			}
			found := limit.FindStringSubmatch(text)
			if found == nil {
				return false, "no cap"
			}
			cores, err := strconv.ParseFloat(found[1], 64)
			return err == nil && int(cores*100) >= least*capacity/100 && int(cores*100) <= most*capacity/100, found[0]
		})
	}
	awaitQuota := func(h hostSide, what string, least, most int) {
		t.Helper()
		await(t, fmt.Sprintf("%s: a quota between %d and %d percent of the node", what, least, most), func() (bool, string) {
			q := h.quota(t)
			return q >= least*capacity/100 && q <= most*capacity/100, itoa(int64(q))
		})
	}
	// A cap falls at once, whatever the machine itself did before the crowd came.
	others.busy.Store(60)
	awaitCap("others to use 60 percent", 10, 30)

	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceCPU: resource.MustParse("200m")}
	guaranteed := instance("online", 10, 5).command("/bin/sleep", "1000")
	for name, quantity := range limits {
		guaranteed.main().Resources.Limits[name] = quantity
	}
	beside := awaitReady(t, create(t, guaranteed))
	greedy := instance("greedy-batch", 10, 5).annotate(v1alpha1.AnnotationQoS, "opportunistic").
		command("/bin/sh", "-c", "while :; do :; done")
	greedy.main().Resources.Limits[corev1.ResourceMemory] = limits[corev1.ResourceMemory]
	greedy.main().Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	made := awaitReady(t, create(t, greedy))
	h, b := hostSideOf(t, made), hostSideOf(t, beside)
	burner.Store(&h)

	if shares := h.read(t, "cpu", "cpu.shares", "cpu.weight"); shares != "2" && shares != "1" {
		t.Errorf("weight %s, want the least", shares)
	}
	// There is no memory.high where version 1 has the controller.
	if high := h.read(t, "memory", "memory.limit_in_bytes", "memory.high"); high != itoa(64<<20) && high != itoa(64<<20/10*9/4096*4096) {
		t.Errorf("memory is taken back from %s bytes on", high)
	}
	if score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.pid)); err != nil || strings.TrimSpace(string(score)) != "1000" {
		t.Errorf("oom_score_adj %s, %v", score, err)
	}
	awaitQuota(h, "others use 60 percent", 5, 40)
	// The quota follows changes of a step, a twentieth of the node. Less than a step above
	// the least there is, it falls no more, and the others' use, which comes out a little
	// different with each look, leaves it: no change is under way when the agent dies.
	others.busy.Store(90)
	await(t, "others use nearly all: a quota below a tenth of the node", func() (bool, string) {
		q := h.quota(t)
		return q >= capacity/20 && q < capacity/10, itoa(int64(q))
	})
	freeze(t, agent)
	restart := onceBack(t, agent)
	held := h.quota(t)
	kill(t, agent)
	if now := h.quota(t); now != held {
		t.Errorf("the agent died and the quota became %d from %d", now, held)
	}
	others.busy.Store(0)
	restart()
	awaitQuota(h, "the agent is back and others are quiet", 60, 80)

	if shares, quota := b.read(t, "cpu", "cpu.shares", "cpu.weight"), b.quota(t); shares == "2" || shares == "1" || quota != 20 {
		t.Errorf("the guaranteed container has weight %s and a quota of %d %%", shares, quota)
	}
	for _, p := range []*corev1.Pod{made, beside} {
		if c := get(t, p).Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Running == nil {
			t.Errorf("Invariant 4: pod %s: %+v", p.Name, c)
		}
	}
}
