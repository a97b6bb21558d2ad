// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"maps"
	"testing"

	"vernier.dev/vernier/nri-plugin/device"
)

// turns are those of a node on which a container works on gpu0.
type turns struct {
	busy       map[int]int
	containers map[int]string
}

func (*turns) Working() []string { return []string{gpu0, gpu1} }

func (t *turns) Sampled(uuid string, busy map[int]int, containers map[int]string) {
	if uuid == gpu0 {
		t.busy, t.containers = busy, containers
	}
}

// sampling is NVML with a process on gpu0 for each way to be somewhere; it says nothing of gpu1.
type sampling struct {
	device.Library
	asked []uint64
}

// sampledNode has that NVML.
type sampledNode struct{ nvml *sampling }

func (s sampledNode) Library() (device.Library, error) { return s.nvml, nil }

func (s *sampling) Utilization(uuid string, since uint64) (map[int]int, uint64, error) {
	if uuid != gpu0 {
		return nil, since, errors.New("not supported")
	}
	s.asked = append(s.asked, since)
	return map[int]int{1: 10, 2: 20, 3: 30, 4: 40, 5: 5}, since + 7, nil
}

// TestSample: a process is in the container whose cgroup it is in, whatever it names the
// cgroups below that; one that has ended is nobody's, the container's own least of all; and
// one device that NVML says nothing of leaves the others as they are.
func TestSample(t *testing.T) {
	n := newNode(t)
	got, library := &turns{}, &sampling{}
	s := &Sampler{Devices: sampledNode{library}, Turns: got, Containers: n.Containers, Proc: n.Proc, Log: n.Log}
	n.runs(1, "limited", 1)
	n.runs(2, "", 1)
	n.runs(3, "plain", 1)
	n.write(3, "cgroup", "0::/kubepods/podx/"+id("plain")+"/"+id("limited")+"\n")
	n.runs(5, "limited", 1)
	n.write(5, "stat", stat(5, "Z", 1))
	s.Sample()
	s.Sample()
	if want := map[int]int{1: 10, 2: 20, 3: 30}; !maps.Equal(got.busy, want) {
		t.Errorf("busy are %v, want %v", got.busy, want)
	}
	if want := map[int]string{1: id("limited"), 3: id("plain")}; !maps.Equal(got.containers, want) {
		t.Errorf("they are in %v, want %v", got.containers, want)
	}
	if len(library.asked) != 2 || library.asked[0] != 0 || library.asked[1] != 7 {
		t.Errorf("asked since %v, want 0 and 7", library.asked)
	}
}
