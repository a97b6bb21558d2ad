// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/nri-plugin/mode/limiter"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

const (
	gpu  = "GPU-00000000-0000-0000-0000-000000000000"
	size = v1alpha1.MiB(81920)
	mem  = v1alpha1.MiB(8192)
	// shares is what the webhook writes for a tenth of it.
	shares = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`
)

// granted is a ledger that gives each pod its slice.
type granted struct{ *v1alpha1.SliceLedger }

func (g granted) Index() *ledger.Index                         { return ledger.NewIndex(g.SliceLedger) }
func (g granted) Behind() bool                                 { return false }
func (g granted) Fetch(context.Context) (*ledger.Index, error) { return g.Index(), nil }

func grant(pods ...string) granted {
	d := v1alpha1.DeviceLedger{UUID: gpu, Core: v1alpha1.WholeGPU, Mem: size}
	for _, name := range pods {
		d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID("uid-" + name), Owner: "team/" + name, Ctr: "main", Core: 10, Mem: mem})
	}
	return granted{&v1alpha1.SliceLedger{
		Spec:   v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{d}},
		Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{{UUID: gpu, Mem: size, Healthy: true}}},
	}}
}

type nvml interface{ device.Library }

// gpus is one device, whose driver keeps the limits that it is given by directory.
type gpus struct {
	nvml   // the rest of it is not called
	mu     sync.Mutex
	limits map[string]v1alpha1.MiB
}

func (*gpus) Check(string, v1alpha1.MiB) error   { return nil }
func (g *gpus) Library() (device.Library, error) { return g, nil }
func (*gpus) Snapshot() (device.Snapshot, bool) {
	return device.Snapshot{
		Driver:  v1alpha1.DriverStatus{MemoryLimits: true},
		Devices: []v1alpha1.DeviceStatus{{UUID: gpu, Mem: size, Healthy: true, NUMA: ptr.To[int32](1)}},
	}, true
}

func (g *gpus) SetMemoryLimit(_, dir string, limit v1alpha1.MiB) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits[dir] = limit
	return nil
}

func (g *gpus) MemoryLimit(_, dir string) (v1alpha1.MiB, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits[dir], nil
}

type warnings struct{ *testing.T }

func (w warnings) Warn(pod hooks.PodRef, reason, message string) {
	w.Errorf("pod %s: %s: %s", pod.Name, reason, message)
}

// connect has the agent's plugin serve containerd, and the node's keeper with it.
func connect(t *testing.T, n *node, c *containerd, l granted) (*hooks.Plugin, *gpus) {
	t.Helper()
	finder := must.Get(cgroup.New("/proc"))(t)
	nritest.UnmountAfter(t, c.dir)
	library := filepath.Join(c.dir, "libvgpu.so")
	must.Do(t, os.WriteFile(library, []byte("no program here loads it"), 0o600))
	g := &gpus{limits: map[string]v1alpha1.MiB{}}
	files := must.Get(limiter.New(filepath.Join(c.dir, "vernier"), library, &driverlimit.Limit{Devices: g, Leaf: finder.Leaf}))(t)
	spec := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":%q,"devices":[{"name":%q,"containerEdits":{"env":["DEVICE=here"]}}]}`, v1alpha1.CDIKind, gpu)
	must.Do(t, errors.Join(os.MkdirAll(filepath.Join(c.dir, "cdi"), 0o755), os.WriteFile(filepath.Join(c.dir, "cdi", "gpu.json"), []byte(spec), 0o600)))
	p := &hooks.Plugin{
		Ledger: l, Devices: g, Table: &attach.ContainerTable{}, Report: warnings{t}, Log: logr.Discard(), Batch: n.Keeper,
		Modes: mode.Set{v1alpha1.ModeLimiter: files}, Sysfs: "/sys", BindCPUs: true,
		Kill: func(_ uint32, container string) error { return fmt.Errorf("container %s is not held", container) },
	}
	changed := make(chan struct{}, 16)
	connection := &hooks.Connection{Socket: filepath.Join(c.dir, "nri.sock"), Plugin: p, Changed: func(bool) { changed <- struct{}{} }}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- connection.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must.Report(t, <-ended)
	})
	for late := time.After(time.Minute); connection.Err() != nil; {
		select {
		case <-changed:
		case <-late:
			t.Fatal(connection.Err())
		}
	}
	n.Containers, n.Update = p.Containers.Batch, connection.Update
	return p, g
}

// annotations are what the webhook writes, and more, names and values in turn.
func annotations(more ...string) map[string]string {
	all := map[string]string{v1alpha1.AnnotationShares: shares, v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// The same by containerd: what the plugin says at a container's creation, what it keeps
// when the kubelet changes the container, and what it asks for of its own accord come
// through NRI, CRI and runc to the kernel as they were meant, and nothing else of the
// container changes by it. The driver's memory limit is on the container's own directory.
func TestThroughContainerd(t *testing.T) {
	n, c := newNode(t), startContainerd(t)
	_, driver := connect(t, n, c, grant("batch", "online"))
	n.awaitCap(whenQuiet)

	const memory = 64 * mib
	asked := &cri.LinuxContainerResources{CpuShares: 1024, CpuPeriod: period, MemoryLimitInBytes: memory, OomScoreAdj: 900}
	b := c.run("batch", annotations(v1alpha1.AnnotationQoS, string(v1alpha1.QoSOpportunistic)), busier, asked)
	o := c.run("online", annotations(), "/busybox sleep 1000", asked)
	b.want("created", map[string]string{"cpu.weight": "1", "memory.high": ninety(memory), "memory.max": strconv.Itoa(memory)})
	if q := batch.MilliCPU(b.quota()); !near(q, whenQuiet) {
		t.Errorf("created with a quota of %d, want %d", q, whenQuiet)
	}
	usual := o.read("cpu.weight")
	o.want("created", map[string]string{"cpu.max": fmt.Sprintf("max %d", period), "memory.high": "max", "memory.max": strconv.Itoa(memory)})
	if usual == "1" {
		t.Error("the one beside it has the least weight as well")
	}
	b.wantScore(1000)
	o.wantScore(900)
	for _, g := range []group{b, o} {
		driver.mu.Lock()
		limit := driver.limits[g.dir]
		driver.mu.Unlock()
		if limit != mem || !strings.Contains("\n"+g.read("cgroup.procs")+"\n", fmt.Sprintf("\n%d\n", g.pid)) {
			t.Errorf("the driver holds %s to %d MiB; its processes: %s", g.dir, limit, g.read("cgroup.procs"))
		}
	}

	n.awaitCap(whenQuiet)
	n.others = loud
	n.awaitCap(whenLoud)
	if q := batch.MilliCPU(b.quota()); !near(q, whenLoud) {
		t.Errorf("others are loud: a quota of %d, want %d", q, whenLoud)
	}
	b.want("after the cap fell", map[string]string{"cpu.weight": "1", "memory.high": ninety(memory), "memory.max": strconv.Itoa(memory)})
	b.wantScore(1000)

	before := b.quota()
	for _, g := range []group{b, o} {
		more := &cri.LinuxContainerResources{CpuShares: 4096, CpuQuota: 8 * period, CpuPeriod: period, MemoryLimitInBytes: 2 * memory}
		must.Get(c.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: g.id, Linux: more}))(t)
	}
	b.want("resized", map[string]string{"cpu.weight": "1", "memory.high": ninety(2 * memory), "memory.max": strconv.Itoa(2 * memory)})
	if after := b.quota(); after != before {
		t.Errorf("resized by the kubelet its quota became %d from %d", after, before)
	}
	o.want("resized", map[string]string{"cpu.max": fmt.Sprintf("%d %d", 8*period, period), "memory.high": "max", "memory.max": strconv.Itoa(2 * memory)})
	if o.read("cpu.weight") == usual {
		t.Errorf("the weight of the one beside it stayed %s", usual)
	}
}
