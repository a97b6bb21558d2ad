// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"fmt"
	"maps"
	"math/bits"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

const mem v1alpha1.MiB = 1000

// profiles of a device that MIG cuts into four, two or one.
var profiles = []v1alpha1.MIGProfile{
	{ID: 3, Core: 25, Mem: 250, Size: 1, Starts: []int32{0, 1, 2, 3}, Max: 4},
	{ID: 2, Core: 50, Mem: 500, Size: 2, Starts: []int32{0, 2}, Max: 2},
	{ID: 1, Core: 100, Mem: 1000, Size: 4, Starts: []int32{0}, Max: 1},
}

func uuid(i int) string { return fmt.Sprint("GPU-", i) }

// newLedger is a ready node with empty devices of 1000 MiB.
func newLedger(devices int) *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for i := range devices {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid(i), Index: int32(i), Model: "T4", Mem: mem, Healthy: true})
	}
	l.Status.Driver.MPS = true
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	return l
}

// grant gives the pod a plan, in use on the node.
func grant(t testing.TB, l *v1alpha1.SliceLedger, pod types.UID, given ...placement.Grant) {
	t.Helper()
	if err := grants.Grant(l, pod, "ns/"+string(pod), placement.Plan{Node: l.Name, Grants: given}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for _, g := range given {
		l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: pod, Ctr: g.Container, UUID: g.UUID})
	}
}

func on(device int, core v1alpha1.Percent, of v1alpha1.MiB) placement.Grant {
	return placement.Grant{Container: "c", UUID: uuid(device), Core: core, Mem: of, Mode: v1alpha1.ModeLimiter}
}

func container(gpus v1alpha1.DeviceCount, core, of v1alpha1.Percent) placement.Container {
	return placement.Container{Name: "c", Mode: v1alpha1.ModeAuto, Share: v1alpha1.Share{GPUs: gpus, Core: core, MemPercent: of}}
}

func ask(containers ...placement.Container) *placement.Demand {
	return &placement.Demand{Containers: containers, Policy: v1alpha1.PolicyPack}
}

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

// earliest is Earliest at the second 0.
func earliest(d *placement.Demand, l *v1alpha1.SliceLedger, room leaving.Room, ends map[types.UID]time.Time) (leaving.Choice, bool) {
	return Earliest(d, l, room, func(uid types.UID) (time.Duration, bool) {
		end, known := ends[uid]
		return end.Sub(at(0)), known
	})
}

// endIn is when the last has ended for whom a choice waits, zero where that is not known.
func endIn(w leaving.Choice) time.Time {
	if len(w.Victims) == 0 || w.Cost.Priority == Unknown {
		return time.Time{}
	}
	return at(int(w.Cost.Priority))
}

func TestEarliest(t *testing.T) {
	// a and b are on device 0, c and d on device 1, e on both of 2 and 3.
	l := newLedger(4)
	grant(t, l, "a", on(0, 10, 100))
	grant(t, l, "b", on(0, 30, 300))
	grant(t, l, "c", on(1, 60, 100))
	grant(t, l, "d", on(1, 20, 600))
	grant(t, l, "e", on(2, 90, 900), on(3, 90, 900))
	model := ask(container(1, 100, 100))
	model.Models, _ = v1alpha1.ParseAllowList("H100")
	third := ask(container(1, 100, 100))
	third.UUIDs, _ = v1alpha1.ParseAllowList(uuid(3))
	together := ask(container(1, 50, 10), container(1, 40, 10))
	together.SameGPU = true
	tests := []struct {
		name    string
		demand  *placement.Demand
		ends    map[types.UID]time.Time
		leaving []types.UID
		end     time.Time
		share   int64
	}{
		{"it fits now", ask(container(1, 60, 60)), map[types.UID]time.Time{"a": at(1)}, nil, time.Time{}, 0},
		{"a whole device, no end known: the one with the least on it", ask(container(1, 100, 100)), nil, []types.UID{"a", "b"}, time.Time{}, 40},
		{"a whole device, the earliest end", ask(container(1, 100, 100)), map[types.UID]time.Time{"a": at(5), "b": at(9), "c": at(8), "d": at(7)}, []types.UID{"c", "d"}, at(8), 120},
		{"an end that comes last on its device is of no use alone", ask(container(1, 100, 100)), map[types.UID]time.Time{"a": at(1), "c": at(8), "d": at(7)}, []types.UID{"c", "d"}, at(8), 120},
		{"one of two ends is known: it does not count", ask(container(1, 100, 100)), map[types.UID]time.Time{"b": at(1)}, []types.UID{"a", "b"}, time.Time{}, 40},
		{"half a device more: one pod alone", ask(container(1, 65, 65)), nil, []types.UID{"a"}, time.Time{}, 10},
		{"three devices: one of them of a pod on two", ask(container(3, 100, 100)), nil, []types.UID{"a", "b", "e"}, time.Time{}, 220},
		{"two devices at once", ask(container(2, 100, 100)), map[types.UID]time.Time{"a": at(5), "b": at(9), "c": at(8), "d": at(7), "e": at(6)}, []types.UID{"e"}, at(6), 180},
		{"all of them", ask(container(4, 50, 60)), nil, []types.UID{"c", "d", "e"}, time.Time{}, 300},
		{"one device by name", third, nil, []types.UID{"e"}, time.Time{}, 180},
		{"two containers on one device", together, nil, []types.UID{"b"}, time.Time{}, 30},
		{"two containers on any", ask(container(1, 70, 70), container(1, 65, 65)), nil, []types.UID{"a", "c", "d"}, time.Time{}, 130},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, ok := earliest(tt.demand, l, index.Room, tt.ends)
			if !ok || !slices.Equal(w.Victims, tt.leaving) || !endIn(w).Equal(tt.end) || w.Cost.Loss != float64(tt.share) || len(w.Plan.Grants) == 0 || w.Plan.Node != "n" {
				t.Errorf("%v: %+v, want %v, %s, %d", ok, w, tt.leaving, tt.end, tt.share)
			}
		})
	}
	for name, d := range map[string]*placement.Demand{"another model": model, "more devices": ask(container(5, 1, 1))} {
		if w, ok := earliest(d, l, index.Room, nil); ok {
			t.Errorf("%s: %+v", name, w)
		}
	}
	l.Status.Conditions[0].Status = metav1.ConditionFalse
	if w, ok := earliest(ask(container(1, 100, 100)), l, index.Room, nil); ok {
		t.Errorf("a node that takes nothing: %+v", w)
	}
}

// The room that others have reserved is no room, although the sums show it.
func TestEarliestBesideAReservation(t *testing.T) {
	l := newLedger(2)
	grant(t, l, "a", on(0, 10, 100))
	grant(t, l, "b", on(1, 50, 500))
	reserved := func(l *v1alpha1.SliceLedger) *placement.Node {
		n := index.Room(l)
		n.Devices[0].FreeCore = 0
		return n
	}
	if w, ok := earliest(ask(container(1, 90, 90)), l, reserved, nil); !ok || !slices.Equal(w.Victims, []types.UID{"b"}) {
		t.Errorf("%v: %+v", ok, w)
	}
}

// What fits now comes first, then the earliest end, then what leaves less.
func TestEarliestCosts(t *testing.T) {
	l := newLedger(1)
	grant(t, l, "a", on(0, 10, 100))
	grant(t, l, "b", on(0, 30, 300))
	grant(t, l, "c", on(0, 60, 600))
	var costs []leaving.Cost
	for _, c := range []struct {
		core v1alpha1.Percent
		ends map[types.UID]time.Time
	}{
		{0, nil},
		{90, map[types.UID]time.Time{"b": at(5), "c": at(5)}},
		{10, map[types.UID]time.Time{"a": at(6)}},
		{10, nil},
		{100, nil},
	} {
		w, ok := earliest(ask(container(1, c.core, max(c.core, 1))), l, index.Room, c.ends)
		if c.core == 0 {
			w, ok = earliest(ask(container(1, 1, 1)), newLedger(1), index.Room, nil)
		}
		if !ok {
			t.Fatalf("no room for %d %%", c.core)
		}
		costs = append(costs, w.Cost)
	}
	if !slices.IsSortedFunc(costs, leaving.Cost.Compare) || costs[0] != leaving.None {
		t.Errorf("%+v", costs)
	}
	for i := range costs[1:] {
		if costs[i].Compare(costs[i+1]) == 0 {
			t.Errorf("%d and %d cost the same", i, i+1)
		}
	}
}

// randomNode is a node of up to three devices with up to seven pods, placed by the engine, some
// devices in MIG mode; ends are of about two in three of them.
func randomNode(t *testing.T, r *rand.Rand, mig bool) (*v1alpha1.SliceLedger, map[types.UID]time.Time) {
	l := newLedger(1 + r.Intn(3))
	for i := range l.Status.Devices {
		if mig && r.Intn(2) == 0 {
			l.Status.Devices[i].MIG, l.Status.Devices[i].Profiles = v1alpha1.MIGEnabled, profiles
		}
	}
	ends := map[types.UID]time.Time{}
	allKnown := r.Intn(3)
	for i := range 7 {
		d := randomDemand(r, mig)
		d.Policy = v1alpha1.PolicySpread
		plan, ok := placement.Fit(d, index.Room(l))
		if !ok {
			continue
		}
		uid := types.UID(fmt.Sprint("pod-", i))
		grant(t, l, uid, plan.Grants...)
		if allKnown == 0 || allKnown == 1 && r.Intn(2) == 0 {
			ends[uid] = at(1 + r.Intn(10))
		}
	}
	return l, ends
}

func randomDemand(r *rand.Rand, mig bool) *placement.Demand {
	d := ask(container(1, v1alpha1.Percent(r.Intn(101)), v1alpha1.Percent(1+r.Intn(100))))
	switch r.Intn(5) {
	case 0:
		d.Containers[0].Share.GPUs = 2
	case 1:
		second := container(1, v1alpha1.Percent(r.Intn(60)), v1alpha1.Percent(1+r.Intn(60)))
		second.Name, second.Kind = "second", placement.Kind(r.Intn(3))
		d.Containers = append([]placement.Container{second}, d.Containers...)
		d.SameGPU = r.Intn(2) == 0
	case 2:
		d.Containers[0].Mode = v1alpha1.ModeMPS
	case 3:
		if mig {
			d.Containers[0].Mode = v1alpha1.ModeMIG
		}
	}
	return d
}

// reduced is the ledger once these pods have ended, made another way than by the search.
func reduced(l *v1alpha1.SliceLedger, gone map[types.UID]bool) *v1alpha1.SliceLedger {
	l = l.DeepCopy()
	for i := range l.Spec.Devices {
		d := &l.Spec.Devices[i]
		d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return gone[s.Pod] })
	}
	l.Status.Slices = slices.DeleteFunc(l.Status.Slices, func(s v1alpha1.SliceStatus) bool { return gone[s.Pod] })
	return l
}

// truth is what trying all sets of pods finds: whether the demand fits without some, and the
// earliest time and the least share at which it does.
func truth(d *placement.Demand, l *v1alpha1.SliceLedger, ends map[types.UID]time.Time, shares map[types.UID]int64) (fits bool, end time.Time, share int64) {
	pods := slices.Sorted(maps.Keys(shares))
	known := false
	for set := range 1 << len(pods) {
		gone, last, sum := map[types.UID]bool{}, time.Time{}, int64(0)
		for i, p := range pods {
			if set>>i&1 == 1 {
				gone[p] = true
				sum += shares[p]
				if ends[p].After(last) {
					last = ends[p]
				}
			}
		}
		if _, ok := placement.Fit(d, index.Room(reduced(l, gone))); !ok {
			continue
		}
		timed := bits.OnesCount(uint(set)) == countKnown(gone, ends)
		if !fits || sum < share {
			share = sum
		}
		if timed && (!known || last.Before(end)) {
			end, known = last, true
		}
		fits = true
	}
	return fits, end, share
}

func countKnown(gone map[types.UID]bool, ends map[types.UID]time.Time) (n int) {
	for p := range gone {
		if _, ok := ends[p]; ok {
			n++
		}
	}
	return n
}

func sharesOf(l *v1alpha1.SliceLedger) map[types.UID]int64 {
	shares := map[types.UID]int64{}
	for _, d := range l.Spec.Devices {
		for _, s := range d.Slices {
			shares[s.Pod] += max(int64(s.Core-s.ReuseCore), int64(s.Mem-s.ReuseMem)*100/int64(d.Mem))
		}
	}
	return shares
}

// Against trying all sets of pods: it finds room if there is any, at the earliest time, and no
// pod that leaves could stay. Where no end is known it finds the least share for a whole device,
// and nearly always for less: that is a knapsack.
func TestEarliestAgainstAllSets(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	found := map[string]int{}
	const cases = 4_000
	for i := range cases {
		l, ends := randomNode(t, r, i%2 == 0)
		d := randomDemand(r, i%2 == 0)
		whole := r.Intn(3) == 0
		if whole {
			d = ask(container(1, 100, 100))
		}
		if r.Intn(3) == 0 {
			near := []v1alpha1.DeviceSet{"0-1", "2", "0-2", "1-2"}[r.Intn(3):]
			l.Status.Topology = &v1alpha1.TopologyStatus{NVLink: near[:2], PCIe: near[1:]}
			l.Status.Devices[0].NICs = []string{"mlx5_0"}
			levels := []v1alpha1.TopologyLevel{v1alpha1.TopologyNVLink, v1alpha1.TopologyPCIe, v1alpha1.TopologyNUMA, v1alpha1.TopologyRDMA}
			d.Topology = v1alpha1.TopologyRequest{Level: levels[r.Intn(4)], Required: r.Intn(3) > 0}
		}
		before, shares := l.DeepCopy(), sharesOf(l)
		w, ok := earliest(d, l, index.Room, ends)
		if !reflect.DeepEqual(l, before) {
			t.Fatalf("case %d: the ledger has changed", i)
		}
		fits, end, share := truth(d, l, ends, shares)
		if ok != fits {
			t.Fatalf("case %d: found %v, want %v", i, ok, fits)
		}
		if !ok {
			found["nothing"]++
			continue
		}
		if !endIn(w).Equal(end) {
			t.Fatalf("case %d: ends at %s, want %s: %+v", i, endIn(w), end, w)
		}
		gone, sum := map[types.UID]bool{}, int64(0)
		for _, p := range w.Victims {
			gone[p], sum = true, sum+shares[p]
		}
		plan, fitsWithout := placement.Fit(d, index.Room(reduced(l, gone)))
		if !fitsWithout || !reflect.DeepEqual(plan, w.Plan) || float64(sum) != w.Cost.Loss || !slices.IsSorted(w.Victims) {
			t.Fatalf("case %d: %+v, the plan is %+v, the share %d", i, w, plan, sum)
		}
		for _, p := range w.Victims {
			gone[p] = false
			if _, still := placement.Fit(d, index.Room(reduced(l, gone))); still {
				t.Fatalf("case %d: %s can stay: %+v", i, p, w)
			}
			gone[p] = true
		}
		switch {
		case len(w.Victims) == 0:
			found["now"]++
		case !endIn(w).IsZero():
			found["known"]++
		default:
			found["unknown"]++
			if w.Cost.Loss == float64(share) {
				found["least"]++
			} else if whole && len(ends) == 0 {
				t.Fatalf("case %d: %v %% leave, %d %% would do: %+v", i, w.Cost.Loss, share, w)
			}
		}
	}
	for _, kind := range []string{"nothing", "now", "known", "unknown"} {
		if found[kind] < cases/50 {
			t.Errorf("%d of %d cases are %q: the test no longer looks at it", found[kind], cases, kind)
		}
	}
	if found["least"]*100 < found["unknown"]*90 {
		t.Errorf("of %d with no known end %d leave the least share", found["unknown"], found["least"])
	}
	t.Log(found)
}
