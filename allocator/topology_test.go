// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// gpus gives the node so many GPUs, GPU-NODE-0 and so on, that are near each other like that.
func (s *stage) gpus(node string, n int, near *v1alpha1.TopologyStatus) {
	s.t.Helper()
	s.setLedgerStatus(node, func(st *v1alpha1.SliceLedgerStatus) {
		for i := len(st.Devices); i < n; i++ {
			d := v1alpha1.DeviceStatus{UUID: gpu(node, i), Index: int32(i), Minor: int32(i), Model: "T4", Mem: objects.DeviceMiB, Healthy: true}
			st.Devices = append(st.Devices, d)
			s.node(node).own(hardware{uuid: d.UUID, mem: d.Mem})
		}
		st.Topology = near
	})
	s.node(node).advertise()
}

// wants creates a pod for so many whole GPUs with a wish.
func (s *stage) wants(name string, gpus v1alpha1.DeviceCount, wish string) {
	s.t.Helper()
	s.add(name, 1, 1, func(p *corev1.Pod) {
		q := objects.Pod(name, map[string]v1alpha1.Share{"a": {GPUs: gpus, Core: 100, MemPercent: 100}})
		p.Annotations, p.Spec.Containers = q.Annotations, q.Spec.Containers
		p.Annotations[v1alpha1.AnnotationTopology] = wish
	})
}

// at is where the pod is: its node, its devices there, and the level that was achieved.
func (s *stage) at(name string) string {
	s.t.Helper()
	p := s.get(name)
	if podstate.Gated(p) {
		return ""
	}
	placed, err := v1alpha1.ParsePlacement(p.Annotations[v1alpha1.AnnotationPlacement])
	s.must(err)
	var on []string
	for _, uuid := range s.devicesOf(placed.Node, p.UID) {
		on = append(on, strings.TrimPrefix(uuid, "GPU-"+placed.Node+"-"))
	}
	slices.Sort(on)
	return strings.TrimSpace(fmt.Sprint(placed.Node, " ", strings.Join(on, ","), " ", placed.Topology))
}

func (s *stage) isAt(name, want string) {
	s.t.Helper()
	if got := s.at(name); got != want {
		s.t.Errorf("%s is at %q, want %q", name, got, want)
	}
}

// A pod that requires NVLink waits until GPUs that are linked are free, is told what comes
// closest, and gets them.
func TestTopologyRequired(t *testing.T) {
	s := newStage(t, 2)
	s.gpus("n0", 4, nil)
	s.gpus("n1", 2, nil)
	s.wants("p", 2, "nvlink:required")
	s.work()
	s.isAt("p", "")
	s.says("the pod needs GPUs linked to each other by NVLink, as vernier.dev/topology says, and no node's driver reports any")
	// Whose driver says so with one of them in use.
	s.use("n0", 1, 90)
	s.gpus("n0", 4, &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1", "2", "3,9"}})
	s.work()
	s.isAt("p", "")
	s.wants("q", 2, "nvlink:required")
	s.work()
	if sent := fmt.Sprint(s.newEvents()); !strings.Contains(sent, "container a needs 100 % compute and 1,000 MiB on each of 2 GPUs linked to each other by NVLink, as vernier.dev/topology says; nearest: the largest set with room is 1 of 2 on n0 GPU 0-1") {
		t.Errorf("events %s", sent)
	}
	s.wants("free", 2, "")
	s.work()
	s.isAt("free", "n1 0,1")
	s.gpus("n0", 4, &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1", "2-3"}})
	s.work()
	s.isAt("p", "n0 2,3 nvlink")
	s.isAt("q", "")
	s.says("topology nvlink")
}

// The node of the asked level goes before the fuller one, whatever the engine prefers; the
// next lower level will do.
func TestTopologyPreferred(t *testing.T) {
	near := &v1alpha1.TopologyStatus{NUMA: []v1alpha1.DeviceSet{"0-1", "2-3"}, NVLink: []v1alpha1.DeviceSet{"1-2"}}
	for wish, want := range map[string]string{"": "n0 0,1", "nvlink": "n2 1,2 nvlink", "pcie": "n2 0,1 numa", "rdma": "n1 0,1 rdma"} {
		s := newStage(t, 3)
		s.gpus("n2", 4, near)
		s.setLedgerStatus("n1", func(st *v1alpha1.SliceLedgerStatus) {
			for i := range st.Devices {
				st.Devices[i].NICs = []string{"mlx5_0"}
			}
		})
		s.readAll()
		s.wants("p", 2, wish)
		s.work()
		s.isAt("p", want)
	}
	// What a pod on one GPU asks for says nothing but of RDMA devices.
	s := newStage(t, 2)
	s.wants("p", 1, "nvlink:required")
	s.wants("q", 1, "rdma:required")
	s.work()
	s.isAt("p", "n0 0 nvlink")
	s.isAt("q", "")
	s.setLedgerStatus("n1", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[1].NICs = []string{"mlx5_0"} })
	s.work()
	s.isAt("q", "n1 1 rdma")
}

// A container whose GPU fails before it started goes to another one near those of the others,
// and stays where that is required and there is none.
func TestTopologyIsRepaired(t *testing.T) {
	for _, tt := range []struct {
		wish string
		used v1alpha1.Percent // of the GPU that is near
		want string
	}{{"", 0, "2"}, {"numa", 0, "3"}, {"numa:required", 0, "3"}, {"numa", 90, "2"}, {"numa:required", 90, "0"}} {
		s := newStage(t, 1)
		s.gpus("n0", 4, &v1alpha1.TopologyStatus{NUMA: []v1alpha1.DeviceSet{"0-1,3", "2"}})
		s.readAll()
		s.pair("p", objects.Share(70, 100), objects.Share(80, 100), objects.Annotated(v1alpha1.AnnotationTopology, tt.wish))
		s.work()
		s.bind()
		if got := s.on("p"); got != "GPU-n0-1 GPU-n0-0" {
			t.Fatalf("%q: on %q", tt.wish, got)
		}
		s.newEvents()
		s.use("n0", 2, 20)
		if tt.used > 0 {
			s.use("n0", 3, tt.used)
		}
		s.cannotStart("p", "a")
		s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[0].Healthy = false })
		s.work()
		if got := s.on("p"); got != "GPU-n0-1 GPU-n0-"+tt.want {
			t.Errorf("%q with %d %% in use: on %q, want b on %s", tt.wish, tt.used, got, tt.want)
		}
		level := map[string]string{"2": "topology node", "3": "topology numa"}[tt.want]
		if sent := fmt.Sprint(s.newEvents()); tt.wish != "" && !strings.Contains(sent, level) {
			t.Errorf("%q with %d %% in use: events %s", tt.wish, tt.used, sent)
		}
	}
}

// Of pods of lower priority those leave that make room within one set.
func TestTopologyIsPreemptedFor(t *testing.T) {
	s := newStage(t, 1)
	s.gpus("n0", 4, &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1", "2-3"}})
	s.readAll()
	for i, uses := range []v1alpha1.Percent{90, 10, 90, 20} {
		s.add(fmt.Sprint("x", i), uses, 100, objects.Controlled, onDevice(fmt.Sprint("GPU-n0-", i)))
	}
	s.work()
	s.bind()
	s.add("urgent", 1, 1, objects.Priority(1000), func(p *corev1.Pod) {
		q := objects.Pod("urgent", map[string]v1alpha1.Share{"a": {GPUs: 2, Core: 85, MemMiB: 100}})
		p.Annotations, p.Spec.Containers = q.Annotations, q.Spec.Containers
		p.Annotations[v1alpha1.AnnotationTopology] = "nvlink:required"
	})
	s.work()
	s.evicts("x0")
	s.isAt("urgent", "n0 0,1 nvlink")
}
