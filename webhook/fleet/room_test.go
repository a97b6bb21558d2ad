// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
)

func demand(t testing.TB, shares ...api.Share) *placement.Demand {
	t.Helper()
	r := &podrequest.Request{Shares: map[string]api.Share{}}
	for i, share := range shares {
		name := fmt.Sprint("c", i)
		r.Shares[name], r.Containers = share, append(r.Containers, podrequest.Container{Name: name})
	}
	return must.Get(placement.DemandOf(r, nil))(t)
}

// read marks all ledgers as read.
func read(f *Fleet) {
	synced := cache.InformerSynced(func() bool { return true })
	f.synced.Store(&synced)
}

// ready are so many nodes that take slices.
func ready(t testing.TB, f *Fleet, nodes int) {
	read(f)
	for i := range nodes {
		f.see(slim(t, objects.ReadyLedger(fmt.Sprintf("n%d", i))))
	}
}

// A pod's room is what the ledgers leave, node by node; where there is none the cause and the
// nearest device are named, and nobody who has the rest.
func TestRoomFor(t *testing.T) {
	var f Fleet
	third := demand(t, api.Share{GPUs: 1, Core: 30, MemPercent: 10})
	expect := func(what string, of *placement.Demand, want Room, why string) {
		t.Helper()
		got, looked := f.RoomFor(of)
		if got.Pods != want.Pods || got.Cause != want.Cause || !strings.Contains(got.Why, why) || !looked {
			t.Errorf("%s: %+v, want %+v %q", what, got, want, why)
		}
		if back, is := ParseRoom(got.String()); back != got || !is {
			t.Errorf("%s: %q is read as %+v", what, got, back)
		}
	}
	if got, looked := f.RoomFor(third); looked {
		t.Errorf("before the ledgers are read: %+v", got)
	}
	read(&f)
	expect("no node", third, Room{Cause: cause.NoGPU}, "no node has a GPU")
	ready(t, &f, 2)
	gpus := len(objects.ReadyLedger("n0").Status.Devices)
	expect("both empty", third, Room{Pods: 3 * 2 * gpus}, "")
	taken := objects.ReadyLedger("n0")
	objects.Grant(taken, objects.Single("other", api.Share{GPUs: 1, Core: 80, MemPercent: 10}), map[string]int{"c": 0})
	f.see(slim(t, taken))
	expect("one taken", third, Room{Pods: 3 * (2*gpus - 1)}, "")
	away := objects.ReadyLedger("n1")
	away.Status.Conditions = nil
	f.see(slim(t, away))
	expect("one away", demand(t, api.Share{GPUs: api.DeviceCount(gpus), Core: 100, MemPercent: 100}), Room{Cause: cause.NotGranted}, "; 1 node(s) grant nothing now, such as n1: the node agent has not reported yet")
	ready(t, &f, 40)
	expect("more than are counted", third, Room{Pods: MaxPods}, "")
}

// One look at a time, and none goes on beyond its time.
func TestHostileDryRuns(t *testing.T) {
	f := Fleet{Clock: &slow{}}
	ready(t, &f, 40)
	huge := demand(t, api.Share{GPUs: 32, Core: 100, MemPercent: 100})
	if got, _ := f.RoomFor(huge); got.Pods != 0 || !strings.Contains(got.Why, "the first 4 of 40 nodes have none") {
		t.Errorf("a slow look: %+v", got)
	}
	f.looking.Lock()
	if _, looked := f.RoomFor(huge); looked {
		t.Error("two looks beside each other")
	}
	if _, looked := f.RoomOfClasses(classes.Of()); looked {
		t.Error("two looks beside each other, at classes")
	}
}

// slow is a clock by which each node takes 30 ms.
type slow struct{ now time.Duration }

func (s *slow) Now() time.Time { return time.Unix(0, 0).Add(s.now) }
func (s *slow) Since(t time.Time) time.Duration {
	s.now += 30 * time.Millisecond
	return s.Now().Sub(t)
}

// Each class has the room for one of its units.
func TestRoomOfClasses(t *testing.T) {
	var f Fleet
	ready(t, &f, 1)
	device := objects.ReadyLedger("n0").Status.Devices[0]
	gpus := len(objects.ReadyLedger("n0").Status.Devices)
	class := func(name, models string) api.GPUClass {
		return api.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.GPUClassSpec{Models: []string{models}, Unit: api.GPUUnit{Core: 50}}}
	}
	got, looked := f.RoomOfClasses(classes.Of(class("silver", "no such"), class("gold", device.Model)))
	if len(got) != 2 || !looked || got[0].Class != "gold" || got[0].Pods != 2*gpus || got[1].Class != "silver" || got[1].Cause != cause.NoGPUOfClass {
		t.Errorf("%+v", got)
	}
	for _, room := range got {
		if back, is := ParseRoom(room.String()); back != room || !is {
			t.Errorf("%q is read as %+v", room, back)
		}
	}
}

func TestParseRoom_OfOthers(t *testing.T) {
	for _, text := range []string{"", "spec.containers[0]: x", NotLooked, "vernier.dev: room now for many pods like this one", "vernier.dev: room now for no pods like this one", "vernier.dev: room now for 3 pods like this one: NoGPU: x"} {
		if got, is := ParseRoom(text); is {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func BenchmarkRoomFor(b *testing.B) {
	for _, nodes := range []int{100, 5000} {
		for name, of := range map[string]*placement.Demand{"none": demand(b, api.Share{GPUs: 32, Core: 100, MemPercent: 100}), "some": demand(b, api.Share{GPUs: 1, Core: 30, MemPercent: 10})} {
			b.Run(fmt.Sprintf("%s, %d nodes", name, nodes), func(b *testing.B) {
				var f Fleet
				ready(b, &f, nodes)
				for b.Loop() {
					f.RoomFor(of)
				}
			})
		}
	}
}
