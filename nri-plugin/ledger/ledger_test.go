// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

func twoDevices() *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{}
	l.UID, l.Generation = "ledger", 3
	l.Spec.Devices = []v1alpha1.DeviceLedger{
		{UUID: "GPU-0", Core: 100, Mem: 80, Slices: []v1alpha1.Slice{
			{Pod: "a", Owner: "team/a", Ctr: "main", Core: 30, Mem: 20},
			{Pod: "a", Owner: "team/a", Ctr: "init", Core: 50, Mem: 40, ReuseCore: 30, ReuseMem: 20},
		}},
		{UUID: "GPU-1", Core: 100, Mem: 40, Slices: []v1alpha1.Slice{
			{Pod: "a", Owner: "team/a", Ctr: "main", Core: 30, Mem: 10},
			{Pod: "b", Owner: "team/b", Ctr: "main", Core: 100, Mem: 40, Mode: v1alpha1.ModeExclusive},
		}},
	}
	return l
}

// What is reused counts once; a device that is unhealthy, cordoned or gone has nothing free.
func TestSum(t *testing.T) {
	device := func(uuid string, mem v1alpha1.MiB, healthy bool) v1alpha1.DeviceStatus {
		return v1alpha1.DeviceStatus{UUID: uuid, Mem: mem, Healthy: healthy}
	}
	l := twoDevices()
	l.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-3"}}
	var s v1alpha1.SummaryStatus
	NewIndex(l).Sum([]v1alpha1.DeviceStatus{device("GPU-0", 80, true), device("GPU-2", 80, false), device("GPU-3", 80, true), device("GPU-4", 80, true)}, &s)
	if got, want := []int64{int64(*s.CoreGranted), int64(*s.CoreFree), int64(*s.MemGranted), int64(*s.MemFree)}, []int64{180, 150, 90, 120}; !slices.Equal(got, want) {
		t.Errorf("granted and free %v, want %v", got, want)
	}
}

func TestIndex(t *testing.T) {
	x := NewIndex(twoDevices())
	for key, want := range map[Key][]Grant{
		{"a", "main"}: {
			{UUID: "GPU-0", DeviceMem: 80, Core: 30, Mem: 20, PodCore: 50, PodMem: 40, Mode: v1alpha1.ModeLimiter},
			{UUID: "GPU-1", DeviceMem: 40, Core: 30, Mem: 10, PodCore: 30, PodMem: 10, Mode: v1alpha1.ModeLimiter},
		},
		// What is reused is the container's all the same, while it runs; of the pod's
		// it counts once.
		{"a", "init"}:  {{UUID: "GPU-0", DeviceMem: 80, Core: 50, Mem: 40, PodCore: 50, PodMem: 40, Mode: v1alpha1.ModeLimiter}},
		{"b", "main"}:  {{UUID: "GPU-1", DeviceMem: 40, Core: 100, Mem: 40, PodCore: 100, PodMem: 40, Mode: v1alpha1.ModeExclusive}},
		{"b", "other"}: nil,
		{"c", "main"}:  nil,
	} {
		for i := range want {
			want[i].Asked = v1alpha1.Amounts{Core: want[i].Core, Mem: want[i].Mem}
		}
		if got := x.Grants(key); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v, want %v", key, got, want)
		}
	}
	pods := x.Pods()
	slices.Sort(pods)
	if !slices.Equal(pods, []types.UID{"a", "b"}) {
		t.Errorf("pods %v", pods)
	}
	if owner, holds := x.Owner("b"); owner != "team/b" || !holds {
		t.Errorf("owner %q, %t", owner, holds)
	}
	if _, holds := x.Owner("c"); holds {
		t.Error("an unknown pod holds slices")
	}
}

func TestCache(t *testing.T) {
	c := &Cache{}
	if c.Index().Grants(Key{"a", "main"}) != nil || c.Known() {
		t.Error("grants before the first ledger")
	}
	// What the agent has read at its start does not take the place of what the watch has
	// delivered since: nothing would bring that back before the ledger's next change.
	older := twoDevices()
	older.Spec.Devices = older.Spec.Devices[:1]
	c.Begin(older)
	if grants := c.Index().Grants(Key{"a", "main"}); len(grants) == 0 || !c.Known() {
		t.Error("nothing is known from the start")
	}
	c = &Cache{}
	before, now := c.Set(twoDevices())
	c.Begin(older)
	if len(before.Pods()) != 0 || len(now.Pods()) != 2 || c.Index() != now {
		t.Errorf("before %v, now %v", before.Pods(), now.Pods())
	}
	// Invariant 2: a ledger that is gone grants nothing.
	if before, now = c.Set(nil); len(before.Pods()) != 2 || len(now.Pods()) != 0 || !c.Known() {
		t.Errorf("after the deletion: before %v, now %v", before.Pods(), now.Pods())
	}
}
