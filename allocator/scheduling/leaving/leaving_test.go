// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

const deviceMem = v1alpha1.MiB(143360)

var profiles = []v1alpha1.MIGProfile{
	{ID: 19, Core: 14, Mem: 16384, Size: 1, Starts: []int32{0, 1, 2, 3, 4, 5, 6}, Max: 7},
	{ID: 14, Core: 28, Mem: 33024, Size: 2, Starts: []int32{0, 2, 4}, Max: 3},
	{ID: 9, Core: 42, Mem: 71424, Size: 4, Starts: []int32{0, 4}, Max: 2},
	{ID: 0, Core: 100, Mem: 143360, Size: 8, Starts: []int32{0}, Max: 1},
}

// world is a node, who may end for what, and the room that there is.
type world struct {
	ledger *v1alpha1.SliceLedger
	c      *Candidates
	demand *placement.Demand
	room   Room
	// calls counts those of room.
	calls int
}

func newLedger(devices int) *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	for i := range devices {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{
			UUID: fmt.Sprint("GPU-", i), Index: int32(i), Model: "H200", Mem: deviceMem, Healthy: true, MIG: v1alpha1.MIGDisabled})
	}
	return l
}

// place grants the demand on the ledger, if there is room.
func place(l *v1alpha1.SliceLedger, uid types.UID, d *placement.Demand) bool {
	plan, ok := placement.Fit(d, index.Room(l))
	if !ok {
		return false
	}
	if err := grants.Grant(l, uid, "ns/"+string(uid), plan, time.Time{}); err != nil {
		panic(err)
	}
	for _, g := range plan.Grants {
		l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: uid, Ctr: g.Container, UUID: g.UUID, Mode: g.Mode})
	}
	return true
}

func container(name string, gpus int, core v1alpha1.Percent, mem v1alpha1.MiB) placement.Container {
	return placement.Container{Name: name, Mode: v1alpha1.ModeAuto, Share: v1alpha1.Share{GPUs: v1alpha1.DeviceCount(gpus), Core: core, MemMiB: mem}}
}

// randomDemand is of up to most percent of a device for each container.
func randomDemand(r *rand.Rand, devices, most int) *placement.Demand {
	d := &placement.Demand{Policy: []v1alpha1.Policy{v1alpha1.PolicyPack, v1alpha1.PolicySpread}[r.Intn(2)]}
	n := 1
	if r.Intn(3) == 0 {
		n += 1 + r.Intn(2)
	}
	d.SameGPU = r.Intn(3) == 0
	for i := range n {
		c := container(fmt.Sprint("c", i), 1, v1alpha1.Percent(r.Intn(most+1)), 1+v1alpha1.MiB(r.Int63n(int64(deviceMem)*int64(most)/100)))
		if r.Intn(3) == 0 {
			c.Share.MemMiB, c.Share.MemPercent = 0, 1+v1alpha1.Percent(r.Intn(most))
		}
		if !d.SameGPU && r.Intn(3) == 0 {
			c.Share.GPUs = v1alpha1.DeviceCount(1 + r.Intn(devices))
		}
		if n > 1 {
			c.Kind = placement.Kind(r.Intn(3))
		}
		switch r.Intn(8) {
		case 0:
			c.Mode = v1alpha1.ModeMPS
		case 1:
			c.Mode = v1alpha1.ModeMIG
		case 2:
			c.Mode = v1alpha1.ModeLimiter
		}
		d.Containers = append(d.Containers, c)
	}
	return d
}

// randomWorld has a node of up to most candidates, rather full.
func randomWorld(r *rand.Rand, most int) *world {
	w := &world{ledger: newLedger(1 + r.Intn(8)), c: &Candidates{Pods: map[types.UID]Pod{}}}
	l := w.ledger
	l.Status.Driver.MPS = r.Intn(3) > 0
	if r.Intn(3) == 0 {
		for i := range l.Status.Devices {
			if r.Intn(2) == 0 {
				l.Status.Devices[i].MIG, l.Status.Devices[i].Profiles = v1alpha1.MIGEnabled, profiles
			}
		}
	}
	for range r.Intn(3) {
		w.c.Gangs = append(w.c.Gangs, Gang{Spare: r.Intn(3), Whole: r.Intn(4) > 0})
	}
	for range r.Intn(3) {
		w.c.Budgets = append(w.c.Budgets, r.Intn(4))
	}
	candidate := func(uid string) {
		p := Pod{UID: types.UID(uid), Gang: -1, Budget: -1, Cost: Cost{Priority: int32(r.Intn(3)) - 1, Pods: 1, Loss: float64(r.Intn(20)), Grace: float64(r.Intn(3))}}
		if n := len(w.c.Gangs); n > 0 && r.Intn(3) == 0 {
			p.Gang = r.Intn(n)
		}
		if n := len(w.c.Budgets); n > 0 && r.Intn(3) == 0 {
			p.Budget = r.Intn(n)
		}
		if p.Gang >= 0 {
			w.c.Gangs[p.Gang].Pods = append(w.c.Gangs[p.Gang].Pods, p)
		}
		w.c.Pods[p.UID] = p
	}
	size := []int{20, 50, 100}[r.Intn(3)]
	for i, tries := 0, 0; i < most && tries < 5*most; tries++ {
		uid := types.UID(fmt.Sprint("p", i))
		if !place(l, uid, randomDemand(r, len(l.Status.Devices), size)) {
			continue
		}
		i++
		if r.Intn(9) > 0 {
			candidate(string(uid))
		}
	}
	for i := range r.Intn(4) {
		candidate(fmt.Sprint("elsewhere", i))
	}
	if r.Intn(4) == 0 {
		l.Status.Slices = nil
	}
	if d := &l.Status.Devices[r.Intn(len(l.Status.Devices))]; r.Intn(8) == 0 {
		d.Healthy = false
	}
	if d := &l.Status.Devices[r.Intn(len(l.Status.Devices))]; r.Intn(8) == 0 {
		d.Mem += 5000 // more than the ledger took over with the first grant
	}
	w.demand = randomDemand(r, len(l.Status.Devices), []int{40, 70, 100}[r.Intn(3)])
	if r.Intn(3) == 0 {
		w.near(r)
	}
	reserved := make([]v1alpha1.Percent, 8)
	if r.Intn(4) == 0 {
		for i := range reserved {
			reserved[i] = v1alpha1.Percent(r.Intn(60))
		}
	}
	w.room = func(l *v1alpha1.SliceLedger) *placement.Node {
		w.calls++
		n := index.Room(l)
		for i := range n.Devices {
			d := &n.Devices[i]
			d.FreeCore = min(d.FreeCore, max(0, d.FreeCore-reserved[d.Index]))
		}
		return n
	}
	return w
}

// near puts the devices into sets, and has the demand ask for one.
func (w *world) near(r *rand.Rand) {
	s := &w.ledger.Status
	t := &v1alpha1.TopologyStatus{}
	for i := range s.Devices {
		if r.Intn(2) == 0 {
			s.Devices[i].NICs = []string{"mlx5_0"}
		}
	}
	for _, sets := range []*[]v1alpha1.DeviceSet{&t.NUMA, &t.PCIe, &t.NVLink} {
		for size, from := 1+r.Intn(4), 0; from < len(s.Devices); from += size {
			var set []int
			for d := from; d < min(from+size, len(s.Devices)); d++ {
				set = append(set, d)
			}
			*sets = append(*sets, v1alpha1.DeviceSetOf(set))
		}
	}
	s.Topology = t
	levels := []v1alpha1.TopologyLevel{v1alpha1.TopologyNUMA, v1alpha1.TopologyPCIe, v1alpha1.TopologyNVLink, v1alpha1.TopologyRDMA}
	w.demand.Topology = v1alpha1.TopologyRequest{Level: levels[r.Intn(4)], Required: r.Intn(4) > 0}
}

// after is the ledger without those pods, made in another way than the search makes it.
func (w *world) after(gone func(types.UID) bool) *v1alpha1.SliceLedger {
	left := *w.ledger
	left.Spec.Devices, left.Status.Slices = nil, nil
	for _, d := range w.ledger.Spec.Devices {
		all := d.Slices
		d.Slices = nil
		for _, s := range all {
			if !gone(s.Pod) {
				d.Slices = append(d.Slices, s)
			}
		}
		left.Spec.Devices = append(left.Spec.Devices, d)
	}
	for _, s := range w.ledger.Status.Slices {
		if !gone(s.Pod) {
			left.Status.Slices = append(left.Status.Slices, s)
		}
	}
	return &left
}

func (w *world) fits(gone map[types.UID]bool) bool {
	_, ok := placement.Fit(w.demand, w.room(w.after(func(p types.UID) bool { return gone[p] })))
	return ok
}

// ending is what it means that these pods of the node end; false where they may not.
func (w *world) ending(pods []Pod) (gone map[types.UID]bool, cost Cost, ok bool) {
	gone, cost = map[types.UID]bool{}, None
	all := slices.Clone(pods)
	for g, gang := range w.c.Gangs {
		n := 0
		for _, p := range pods {
			if p.Gang == g {
				n++
			}
		}
		if n > gang.Spare {
			if !gang.Whole {
				return nil, cost, false
			}
			cost.Broken++
			all = append(all, gang.Pods...)
		}
	}
	used := make([]int, len(w.c.Budgets))
	for _, p := range all {
		if gone[p.UID] {
			continue
		}
		gone[p.UID] = true
		cost = cost.plus(p.Cost)
		if p.Budget >= 0 {
			if used[p.Budget]++; used[p.Budget] > w.c.Budgets[p.Budget] {
				return nil, cost, false
			}
		}
	}
	return gone, cost, true
}

// local are the candidates of the node.
func (w *world) local() (pods []Pod) {
	for uid := range grants.Pods(w.ledger) {
		if p, ok := w.c.Pods[uid]; ok {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b Pod) int { return int(a.Priority - b.Priority) })
	return pods
}

// optimum tries all subsets, the cheapest first.
func (w *world) optimum() (Cost, bool) {
	pods := w.local()
	type set struct {
		gone map[types.UID]bool
		cost Cost
	}
	var sets []set
	for mask := range 1 << len(pods) {
		var some []Pod
		for i := range pods {
			if mask>>i&1 == 1 {
				some = append(some, pods[i])
			}
		}
		if gone, cost, ok := w.ending(some); ok && (len(gone) == len(some) || cost.Broken > 0) {
			sets = append(sets, set{gone, cost})
		}
	}
	slices.SortFunc(sets, func(a, b set) int { return a.cost.Compare(b.cost) })
	for i := range sets {
		if w.fits(sets[i].gone) {
			return sets[i].cost, true
		}
	}
	return Cost{}, false
}

// check asserts what every choice must hold.
func (w *world) check(t *testing.T, choice Choice) {
	t.Helper()
	if !slices.IsSorted(choice.Victims) {
		t.Fatalf("not sorted: %v", choice.Victims)
	}
	var pods []Pod
	var units []map[types.UID]bool
	byGang := map[int][]Pod{}
	for _, uid := range choice.Victims {
		p, ok := w.c.Pods[uid]
		if !ok {
			t.Fatalf("%s is no candidate", uid)
		}
		pods = append(pods, p)
		if p.Gang >= 0 {
			byGang[p.Gang] = append(byGang[p.Gang], p)
		}
	}
	gone, cost, ok := w.ending(pods)
	if !ok || len(gone) != len(choice.Victims) || cost != choice.Cost {
		t.Fatalf("%v may not end like that, or cost %+v, not %+v: %+v", choice.Victims, cost, choice.Cost, w.c)
	}
	plan, ok := placement.Fit(w.demand, w.room(w.after(func(p types.UID) bool { return gone[p] })))
	if !ok || fmt.Sprint(plan) != fmt.Sprint(choice.Plan) {
		t.Fatalf("the plan is %+v, want %+v", choice.Plan, plan)
	}
	for _, p := range pods {
		if p.Gang < 0 || len(byGang[p.Gang]) <= w.c.Gangs[p.Gang].Spare {
			units = append(units, map[types.UID]bool{p.UID: true})
		}
	}
	for g, members := range byGang {
		if len(members) > w.c.Gangs[g].Spare {
			unit := map[types.UID]bool{}
			for _, p := range members {
				unit[p.UID] = true
			}
			units = append(units, unit)
		}
	}
	for _, unit := range units {
		less := map[types.UID]bool{}
		for uid := range gone {
			less[uid] = !unit[uid]
		}
		if w.fits(less) {
			t.Fatalf("%v could stay of %v", unit, choice.Victims)
		}
	}
}

// On small nodes the choice is what trying all of them finds: the least for one device, and no
// more than a tenth more pods for several.
func TestSearchAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	cases := 10_000
	var many, broken, instances, one, several, none, pods, missed, higher int
	var least Cost
	for n := range cases {
		most := 1 + r.Intn(8)
		if n%40 == 0 {
			most = 12
		}
		w := randomWorld(r, most)
		before := w.ledger.DeepCopy()
		choice, ok := w.c.Search(w.demand, w.ledger, w.room)
		want, can := w.optimum()
		if ok && !can || can && !ok && len(w.c.Gangs)+len(w.c.Budgets) == 0 {
			t.Fatalf("case %d: found %v, there is one: %v, %+v\n%+v", n, ok, can, want, w.demand)
		}
		if can && !ok {
			missed++
			continue
		}
		if n%50 == 0 && !reflect.DeepEqual(before, w.ledger) {
			t.Fatal("the ledger was changed")
		}
		known := func(uid types.UID) (int32, bool) { p, ok := w.c.Pods[uid]; return p.Priority, ok }
		weights := Weigh(w.ledger, index.Room, known)
		bound, may := weights.Bound(w.demand, want.Priority+1)
		if can && (!may || bound.Compare(want) > 0) {
			t.Fatalf("case %d: bound %+v %v, optimum %+v\n%+v", n, bound, may, want, w.demand)
		}
		if bound, may = weights.Bound(w.demand, want.Priority); may && bound.Pods > 0 && bound.Priority >= want.Priority {
			t.Fatalf("case %d: bound %+v of victims below %d", n, bound, want.Priority)
		}
		if !ok {
			none++
			continue
		}
		w.check(t, choice)
		if choice.Cost.Pods == 0 {
			continue
		}
		if choice.Cost.Pods > 2 {
			many++
		}
		if choice.Cost.Priority != want.Priority {
			higher++
		}
		broken, least.Broken = broken+choice.Cost.Broken, least.Broken+want.Broken
		if choice.Plan.Cut() {
			instances++
		}
		least.Pods += want.Pods
		if pods += choice.Cost.Pods; w.demand.Single() || w.demand.SameGPU {
			one++
		} else {
			several++
		}
	}
	t.Logf("%d on one device, %d on several: %d victims, the least is %d; %d of more than two, %d gangs broken of %d, %d on instances; none in %d, missed %d; %d of higher priority",
		one, several, pods, least.Pods, many, broken, least.Broken, instances, none, missed, higher)
	if one < cases/10 || several < cases/20 || none < cases/10 || many < cases/100 || broken < cases/200 || instances < cases/100 {
		t.Error("the cases no longer look at all that there is")
	}
	if 10*pods > 11*least.Pods || 10*broken > 11*least.Broken {
		t.Errorf("%d victims and %d gangs, the least is %+v", pods, broken, least)
	}
	if missed+higher > cases/1000 {
		t.Errorf("missed %d, %d of higher priority than the least", missed, higher)
	}
}

// A device whose memory has grown has more room when its last slice is gone than slices add up
// to: what they add up to must not keep it from being compared.
func TestSearchOnDevicesThatGrew(t *testing.T) {
	w := &world{ledger: newLedger(2), c: &Candidates{Pods: map[types.UID]Pod{}}, room: index.Room}
	for i, loss := range []float64{9, 9, 1, 1} {
		p := Pod{UID: types.UID(fmt.Sprint("p", i)), Cost: Cost{Pods: 1, Loss: loss}, Gang: -1, Budget: -1}
		if !place(w.ledger, p.UID, single(1, 50)) {
			t.Fatal("no room for the pods")
		}
		w.c.Pods[p.UID] = p
	}
	for i := range w.ledger.Status.Devices {
		w.ledger.Status.Devices[i].Mem += 5000
	}
	w.demand = &placement.Demand{Containers: []placement.Container{container("c", 1, 100, deviceMem+5000)}}
	choice, ok := w.c.Search(w.demand, w.ledger, w.room)
	if !ok || fmt.Sprint(choice.Victims) != "[p2 p3]" {
		t.Errorf("%v %+v, want p2 and p3 to end", ok, choice)
	}
	if best, can := w.optimum(); !can || best != choice.Cost {
		t.Errorf("cost %+v, the least is %+v", choice.Cost, best)
	}
}

// One large pod leaves rather than several small ones that hold as much, on whatever device.
func TestSearchTakesFewPods(t *testing.T) {
	w := &world{ledger: newLedger(2), c: &Candidates{Pods: map[types.UID]Pod{}}, room: index.Room, demand: single(1, 40)}
	for i, size := range []v1alpha1.Percent{40, 10, 10, 10, 10, 10, 10, 20, 20, 20, 20, 20} {
		p := Pod{UID: types.UID(fmt.Sprint("p", i)), Gang: -1, Budget: -1, Cost: Cost{Pods: 1}}
		if !place(w.ledger, p.UID, single(1, size)) {
			t.Fatal("no room for the pods")
		}
		w.c.Pods[p.UID] = p
	}
	choice, ok := w.c.Search(w.demand, w.ledger, w.room)
	if !ok || choice.Cost.Pods != 1 {
		t.Errorf("%v %+v, want one pod to end", ok, choice)
	}
}
