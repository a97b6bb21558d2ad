// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
)

// sysfs makes one with these files of its NUMA nodes.
func sysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, "devices/system/node", name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)))
	}
	return root
}

// Two sockets, a node of nothing but memory, and what else is in the folder.
func TestRead(t *testing.T) {
	nodes := must.Get(Read(sysfs(t, map[string]string{
		"node0/cpulist": "0-3,8-11\n", "node1/cpulist": "4-7\n", "node2/cpulist": "\n", "node10/cpulist": "12\n", "online": "0-2,10\n", "power/control": "auto\n",
	})))(t)
	want := Nodes{0: cpuset.New(0, 1, 2, 3, 8, 9, 10, 11), 1: cpuset.New(4, 5, 6, 7), 10: cpuset.New(12)}
	if len(nodes) != len(want) {
		t.Fatalf("%v, want %v", nodes, want)
	}
	for id, cpus := range want {
		if !nodes[id].Equals(cpus) {
			t.Errorf("node %d has %v, want %v", id, nodes[id], cpus)
		}
	}
	for set, at := range map[string]int32{"4-5": 1, "12": 10, "0-3,8-11": 0, "3-4": -1, "": -1, "99": -1, "4-5,99": 1} {
		cpus := must.Get(cpuset.Parse(set))(t)
		if node, one := nodes.Of(cpus); one != (at >= 0) || one && node != at {
			t.Errorf("CPUs %q are of node %d, %v; want %d", set, node, one, at)
		}
	}
	if nodes, err := Read(t.TempDir()); err != nil || len(nodes) != 0 {
		t.Errorf("a kernel without NUMA: %v, %v", nodes, err)
	}
	for name, files := range map[string]map[string]string{
		"no list": {"node0/meminfo": ""}, "another text": {"node0/cpulist": "0-x\n"},
	} {
		if _, err := Read(sysfs(t, files)); err == nil || !strings.Contains(err.Error(), "NUMA node 0") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The runtime's figures are the kubelet's: 1024 shares a CPU, and a quota in a period.
func TestCPUsOf(t *testing.T) {
	r := &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "4-5", Shares: api.UInt64(1536), Quota: api.Int64(250000), Period: api.UInt64(100000)}}
	if got, err := CPUsOf(r); err != nil || !got.Set.Equals(cpuset.New(4, 5)) || got.Request != 1500 || got.Limit != 2500 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := CPUsOf(nil); err != nil || !got.Set.IsEmpty() || got.Request != 0 || got.Limit != 0 {
		t.Errorf("nothing set: %+v, %v", got, err)
	}
	if _, err := CPUsOf(&api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "all"}}); err == nil {
		t.Error("CPUs that nobody can read")
	}
}

func TestRefuses(t *testing.T) {
	four := cpuset.New(0, 1, 2, 3)
	for name, c := range map[string]struct {
		own    CPUs
		others int64
		says   string
	}{
		"alone":                     {CPUs{Request: 1000}, 0, ""},
		"the last that fits":        {CPUs{Request: 600, Limit: 4000}, 3000, ""},
		"more than 90 %":            {CPUs{Request: 601}, 3000, "3.601 CPUs, more than 90 % of the 4"},
		"a limit above the node's":  {CPUs{Request: 1, Limit: 4001}, 0, "its limit of 4.001 CPUs is more than the 4"},
		"no request beside so many": {CPUs{}, 3601, "more than 90 %"},
	} {
		got := c.own.Refuses(four, batch.MilliCPU(c.others))
		if (c.says == "") != (got == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
}

func TestOff(t *testing.T) {
	now := &device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: "a", NUMA: ptr.To[int32](0)}, {UUID: "b", NUMA: ptr.To[int32](1)}, {UUID: "c"}}}
	for _, c := range []struct {
		devices string
		node    int32
		off     string
	}{{"a", 0, ""}, {"a", 1, "a"}, {"ab", 0, "b"}, {"c", 1, ""}, {"x", 1, ""}} {
		if d, is := Off(c.node, strings.Split(c.devices, ""), now); is != (c.off != "") || d.UUID != c.off {
			t.Errorf("%s on node %d: %q, want %q", c.devices, c.node, d.UUID, c.off)
		}
	}
}

// Pods stay until they are where their CPUs are, in an order, and no more than a ledger takes.
func TestMisaligned(t *testing.T) {
	changed := 0
	m := &Misaligned{Changed: func() { changed++ }}
	if _, found := m.Find("a"); found || m.Keep(nil) != nil {
		t.Error("one of nothing")
	}
	m.Add("b", "main", 1)
	m.Add("a", "main", 0)
	if node, found := m.Find("b"); !found || node != 1 || changed != 2 {
		t.Errorf("node %d, %v, after %d changes", node, found, changed)
	}
	want := []v1alpha1.MisalignedPod{{Pod: "a", NUMA: 0}, {Pod: "b", NUMA: 1}}
	if got := m.Keep(func(types.UID, int32) bool { return true }); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := m.Keep(func(_ types.UID, node int32) bool { return node == 0 }); !reflect.DeepEqual(got, want[:1]) {
		t.Errorf("%v, want %v", got, want[:1])
	}
	if _, found := m.Find("b"); found {
		t.Error("b was moved")
	}
	for i := range v1alpha1.MaxMisaligned + 1 {
		m.Add(types.UID(rune('A'+i)), "main", 0)
	}
	if got := m.Keep(func(types.UID, int32) bool { return true }); len(got) != v1alpha1.MaxMisaligned {
		t.Errorf("%d pods in the ledger", len(got))
	}
}
