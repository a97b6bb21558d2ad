// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/test/must"
)

// On a kernel with two NUMA nodes: a container that asks for it is bound to the CPUs of its
// GPU's, and to no memory; one that the kubelet has given CPUs keeps these, and the agent says
// whether they are beside the GPU. What waits for the one CPU shows as pressure.
func TestTwoNUMANodes(t *testing.T) {
	n, c := newNode(t), startContainerd(t)
	plugin, _ := connect(t, n, c, grant("bound", "free", "given", "far"))
	aligned := func(pod string) *bool {
		for _, s := range plugin.Table.Slices() {
			if s.Pod == types.UID("uid-"+pod) {
				return s.Aligned
			}
		}
		t.Errorf("pod %s is not in the table", pod)
		return nil
	}
	numa := annotations(v1alpha1.AnnotationTopology, "numa")
	const sleep = "/busybox sleep 1000"
	for _, tt := range []struct {
		pod         string
		annotations map[string]string
		cpus        string
		// set and effective are cpuset.cpus and what it comes to.
		set, effective string
		// aligned is -1 where it is absent.
		aligned int
	}{
		{"bound", numa, "", "1", "1", 1},
		{"free", annotations(), "", "", "0-1", -1},
		{"given", numa, "1", "1", "1", 1},
		{"far", numa, "0", "0", "0", 0},
	} {
		script := sleep
		if tt.pod == "bound" {
			script = busier
		}
		g := c.run(tt.pod, tt.annotations, script, &cri.LinuxContainerResources{CpuShares: 256, CpusetCpus: tt.cpus})
		g.want(tt.pod, map[string]string{"cpuset.cpus": tt.set, "cpuset.cpus.effective": tt.effective, "cpuset.mems": "", "cpuset.mems.effective": "0-1"})
		got := -1
		if is := aligned(tt.pod); is != nil && *is {
			got = 1
		} else if is != nil {
			got = 0
		}
		if got != tt.aligned {
			t.Errorf("%s: aligned is %d, want %d", tt.pod, got, tt.aligned)
		}
		if tt.pod == "bound" {
			awaitPressure(t, g)
		}
	}
}

// awaitPressure waits until the tasks of a container, more than it has CPUs, have waited.
func awaitPressure(t *testing.T, g group) {
	t.Helper()
	processors := must.Get(cgroup.NewProcessors("/proc"))(t)
	tick, late := time.NewTicker(200*time.Millisecond), time.After(2*time.Minute)
	defer tick.Stop()
	for {
		waited := must.Get(processors.Pressure(g.pid, g.id))(t)
		if waited > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("three busy tasks on one CPU do not wait")
		}
	}
}
