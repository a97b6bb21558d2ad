// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"reflect"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/numa"
	"vernier.dev/vernier/test/must"
)

func entry(pod, id string) Entry {
	return Entry{Container: mode.Container{Pod: types.UID(pod), Owner: "team/" + pod, Name: "main", ID: id}, Sandbox: "sandbox-" + pod}
}

// Invariant 1: of a creation and a fence that race, one loses.
func TestFenceAgainstAttach(t *testing.T) {
	for range 200 {
		b := &ContainerTable{}
		b.Reset(nil)
		var attached error
		var fenced bool
		var both sync.WaitGroup
		both.Go(func() { attached = b.Attach(entry("a", "1")) })
		both.Go(func() { fenced = b.Fence("a") })
		both.Wait()
		if (attached == nil) == fenced {
			t.Fatalf("Invariant 1: attached %v, fenced %t", attached, fenced)
		}
	}
}

func TestFence(t *testing.T) {
	b := &ContainerTable{}
	if b.Fence("a") {
		t.Error("Invariant 1: fenced before the runtime's first list")
	}
	b.Reset([]Entry{entry("a", "1"), entry("a", "2"), entry("b", "3")})
	b.Detach("1")
	if b.Fence("a") {
		t.Error("Invariant 1: fenced with a container left")
	}
	b.Detach("2")
	for range 2 {
		if !b.Fence("a") {
			t.Error("Invariant 6: not fenced without containers")
		}
	}
	if b.Attach(entry("a", "4")) == nil || b.Attach(entry("b", "5")) != nil {
		t.Error("the fence is not the pod's alone")
	}
	b.Disconnected()
	if b.Fence("c") {
		t.Error("Invariant 1: fenced while the runtime is out of sight")
	}
	if !b.Fence("a") {
		t.Error("a fence fell with the connection")
	}
	b.Unfence("a")
	if err := b.Attach(entry("a", "6")); err != nil {
		t.Errorf("after the handshake: %v", err)
	}
}

func TestRestore(t *testing.T) {
	b := &ContainerTable{}
	b.Restore([]types.UID{"b", "a"})
	if got := b.Fenced(); !slices.Equal(got, []types.UID{"a", "b"}) {
		t.Errorf("fenced %v", got)
	}
	if b.Attach(entry("a", "1")) == nil {
		t.Error("Invariant 1: a pod that had been given back attaches after a restart")
	}
}

// Every end is told once, whoever tells it, and every change names the pod.
func TestEndsAreTold(t *testing.T) {
	b := &ContainerTable{}
	var ended []string
	var changed []types.UID
	b.Ended = func(c mode.Container) { ended = append(ended, c.ID) }
	b.Changed = func(pod types.UID) { changed = append(changed, pod) }
	for _, e := range []Entry{entry("a", "1"), entry("b", "2"), entry("c", "3")} {
		must.Do(t, b.Attach(e))
	}
	b.Detach("1")
	b.Detach("1")
	b.DetachSandbox("sandbox-b")
	b.DetachSandbox("sandbox-b")
	b.Reset(nil)
	if want := []string{"1", "2", "3"}; !slices.Equal(ended, want) {
		t.Errorf("ended %v, want %v", ended, want)
	}
	if want := []types.UID{"a", "b", "c"}; !slices.Equal(changed, want) {
		t.Errorf("changed %v, want %v", changed, want)
	}
}

func unaligned([]v1alpha1.SliceStatus, cpuset.CPUSet) {}

// What a container has is compared with the CPUs that it has then, whichever came last.
func TestAlign(t *testing.T) {
	b := &ContainerTable{}
	e := entry("a", "1")
	e.CPUs.Set = cpuset.New(1)
	b.Reset([]Entry{e})
	align := func(status []v1alpha1.SliceStatus, cpus cpuset.CPUSet) {
		for i := range status {
			status[i].Note = cpus.String()
		}
	}
	b.Resized("1", numa.CPUs{Set: cpuset.New(2)}, align)
	if got := b.Slices(); len(got) != 0 {
		t.Errorf("before it is started: %v", got)
	}
	b.Started("1", 0, []v1alpha1.SliceStatus{{Pod: "a"}}, align)
	started, _ := b.Get("1")
	b.Resized("1", numa.CPUs{Set: cpuset.New(3)}, align)
	if got := b.Slices(); len(got) != 1 || got[0].Note != "3" || started.Status[0].Note != "2" {
		t.Errorf("%v, and %v before", got, started.Status)
	}
}

func TestSlices(t *testing.T) {
	b := &ContainerTable{}
	b.Reset([]Entry{entry("b", "2"), entry("a", "1")})
	b.Started("2", 0, []v1alpha1.SliceStatus{{Pod: "b", UUID: "y"}, {Pod: "b", UUID: "x"}}, unaligned)
	b.Started("1", 0, []v1alpha1.SliceStatus{{Pod: "a", UUID: "z"}}, unaligned)
	b.Started("unknown", 0, []v1alpha1.SliceStatus{{Pod: "c"}}, unaligned)
	want := []v1alpha1.SliceStatus{{Pod: "a", UUID: "z"}, {Pod: "b", UUID: "x"}, {Pod: "b", UUID: "y"}}
	if got := b.Slices(); !reflect.DeepEqual(got, want) {
		t.Errorf("slices %v, want %v", got, want)
	}
}
