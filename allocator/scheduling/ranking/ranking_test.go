// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

// cluster is ledgers that change at random, their index, and the ranking that is
// shown what changed.
type cluster struct {
	*rand.Rand
	t       *testing.T
	index   *index.Index
	ranking *Ranking
	ledgers map[string]*v1alpha1.SliceLedger
	hosts   map[string]Host
	asked   map[types.UID]*Ask
	version int
}

func newCluster(t *testing.T, seed int64) *cluster {
	return &cluster{Rand: rand.New(rand.NewSource(seed)), t: t, index: index.New(), ranking: New(),
		ledgers: map[string]*v1alpha1.SliceLedger{}, hosts: map[string]Host{}, asked: map[types.UID]*Ask{}}
}

// write is a new version of a ledger, as the watch shows it.
func (c *cluster) write(l *v1alpha1.SliceLedger) {
	c.version++
	l.ResourceVersion = strconv.Itoa(c.version)
	c.ledgers[l.Name] = l
	c.index.Put(l)
}

func (c *cluster) someLedger() *v1alpha1.SliceLedger {
	names := slices.Sorted(maps.Keys(c.ledgers))
	return c.ledgers[names[c.Intn(len(names))]].DeepCopy()
}

// device is one of a few kinds.
func (c *cluster) device(node string, i int) v1alpha1.DeviceStatus {
	d := v1alpha1.DeviceStatus{UUID: fmt.Sprintf("GPU-%s-%d", node, i), Index: int32(i), Model: "A", Mem: 1000, Healthy: true}
	switch c.Intn(8) {
	case 0:
		d.Model, d.Mem = "B", 333
	case 1:
		d.Mem = 2000
	case 2:
		d.MIG, d.Profiles = v1alpha1.MIGEnabled, []v1alpha1.MIGProfile{
			{ID: 19, Core: 14, Mem: 125, Size: 1, Starts: []int32{0, 1, 2, 3, 4, 5, 6}, Max: 7},
			{ID: 9, Core: 42, Mem: 500, Size: 4, Starts: []int32{0, 4}, Max: 2},
		}
	}
	return d
}

// join makes a node; most have like devices.
func (c *cluster) join(name string) {
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + strconv.Itoa(c.version))}}
	n, unlike := 1+c.Intn(4), c.Intn(4) == 0
	l.Status.Driver.MPS = c.Intn(2) == 0
	for i := range n {
		d := c.device(name, i)
		if !unlike && i > 0 {
			d.Model, d.Mem = l.Status.Devices[0].Model, l.Status.Devices[0].Mem
		}
		l.Status.Devices = append(l.Status.Devices, d)
	}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	c.near(l)
	c.hosts[name] = Host{CPU: packer.Milli(c.Intn(16_000)), Cores: 16_000, Mem: v1alpha1.MiB(c.Intn(4000))}
	c.write(l)
}

// near has the driver say which devices are near each other, or nothing.
func (c *cluster) near(l *v1alpha1.SliceLedger) {
	sets := func() (sets []v1alpha1.DeviceSet) {
		for range c.Intn(3) {
			var set []int
			for d := range l.Status.Devices {
				if c.Intn(3) > 0 {
					set = append(set, d)
				}
			}
			sets = append(sets, v1alpha1.DeviceSetOf(set))
		}
		return sets
	}
	if l.Status.Topology = nil; c.Intn(4) > 0 {
		l.Status.Topology = &v1alpha1.TopologyStatus{NUMA: sets(), PCIe: sets(), NVLink: sets()}
	}
	for d := range l.Status.Devices {
		if l.Status.Devices[d].NICs = nil; c.Intn(2) == 0 {
			l.Status.Devices[d].NICs = []string{"mlx5_0"}
		}
	}
}

// ask is a random pod's.
func (c *cluster) ask() *Ask {
	d := &placement.Demand{}
	mode := []v1alpha1.Mode{v1alpha1.ModeAuto, v1alpha1.ModeLimiter, v1alpha1.ModeMIG, v1alpha1.ModeMPS}[c.Intn(10)%4]
	for i := range 1 + c.Intn(4)/3*c.Intn(3) {
		s := v1alpha1.Share{GPUs: v1alpha1.DeviceCount(1 + c.Intn(4)/3*c.Intn(3)), Core: v1alpha1.Percent(c.Intn(5) * 25)}
		if c.Intn(2) == 0 {
			s.MemPercent = v1alpha1.Percent(1 + c.Intn(100))
		} else {
			s.MemMiB = v1alpha1.MiB(1 + c.Intn(1200))
		}
		d.Containers = append(d.Containers, placement.Container{
			Name: fmt.Sprint("c", i), Kind: placement.Kind(c.Intn(4) % 3), Share: s, Mode: mode})
	}
	if c.Intn(4) == 0 {
		d.SameGPU = true
		for i := range d.Containers {
			d.Containers[i].Share.GPUs = 1
		}
	}
	list := func(s string) v1alpha1.AllowList {
		l, err := v1alpha1.ParseAllowList(s)
		if err != nil {
			c.t.Fatal(err)
		}
		return l
	}
	switch c.Intn(8) {
	case 0:
		d.Policy = v1alpha1.PolicySpread
	case 1:
		d.Models = list([]string{"A", "B", "!A", "A,B", "C"}[c.Intn(5)])
	case 2:
		d.UUIDs = list([]string{"GPU-n1-0", "!GPU-n1-0", "GPU-n2-0,GPU-n3-1"}[c.Intn(3)])
	}
	if c.Intn(3) == 0 {
		levels := []v1alpha1.TopologyLevel{v1alpha1.TopologyNVLink, v1alpha1.TopologyPCIe, v1alpha1.TopologyNUMA, v1alpha1.TopologyRDMA}
		d.Topology = v1alpha1.TopologyRequest{Level: levels[c.Intn(4)], Required: c.Intn(2) == 0}
	}
	return &Ask{Demand: d, CPU: packer.Milli(c.Intn(3) * 1234), Mem: v1alpha1.MiB(c.Intn(3) * 567)}
}

// event is something that happens to ledgers and nodes, mostly from outside.
func (c *cluster) event(i int) string {
	if len(c.ledgers) == 0 || c.Intn(40) == 0 {
		name := fmt.Sprint("n", c.Intn(12))
		if c.ledgers[name] == nil {
			c.join(name)
		}
		return "join " + name
	}
	l := c.someLedger()
	switch k := c.Intn(20); {
	case k < 9:
		a := c.ask()
		c.ranking.Learn(a)
		for plan := range c.ranking.Plans(a) {
			uid := types.UID(fmt.Sprint("p", i))
			c.asked[uid] = a
			l = c.ledgers[plan.Node].DeepCopy()
			if err := grants.Grant(l, uid, "ns/p", plan, time.Time{}); err != nil {
				c.t.Fatal(err)
			}
			h := c.hosts[l.Name]
			h.CPU, h.Mem = h.CPU-a.CPU, h.Mem-a.Mem
			c.hosts[l.Name] = h
			break
		}
	case k < 14:
		grants.Release(l, func(uid types.UID) bool {
			gone := c.Intn(2) == 0
			if a := c.asked[uid]; gone && a != nil {
				h := c.hosts[l.Name]
				h.CPU, h.Mem = h.CPU+a.CPU, h.Mem+a.Mem
				c.hosts[l.Name] = h
				delete(c.asked, uid)
			}
			return gone
		})
	case k < 15:
		d := &l.Status.Devices[c.Intn(len(l.Status.Devices))]
		d.Healthy = !d.Healthy
	case k < 16 && c.Intn(2) == 0:
		c.near(l)
	case k < 16:
		l.Status.Conditions[0].Status = []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse}[c.Intn(2)]
	case k < 17 && len(l.Status.Devices) > 1:
		l.Status.Devices = l.Status.Devices[:len(l.Status.Devices)-1]
	case k < 18:
		l.Status.Devices = append(l.Status.Devices, c.device(l.Name, len(l.Status.Devices)))
	case k < 19:
		h := c.hosts[l.Name]
		h.Aside = !h.Aside
		h.Cores, h.CPU = h.Cores+8000, h.CPU+packer.Milli(c.Intn(20_000)-10_000)
		c.hosts[l.Name] = h
	case c.Intn(4) == 0:
		delete(c.ledgers, l.Name)
		c.index.Delete(l)
		return "delete " + l.Name
	case len(l.Spec.Devices) > 0:
		// Somebody edits the ledger by hand: more is granted than there is, or as
		// many slices as a device takes.
		d := &l.Spec.Devices[0]
		s := v1alpha1.Slice{Pod: types.UID(fmt.Sprint("x", i)), Ctr: "x", Core: 90, Mem: 900}
		for c.Intn(2) == 0 && len(d.Slices) < v1alpha1.MaxSlicesPerDevice {
			s.Core, s.Mem = 0, 1
			d.Slices = append(d.Slices, slices.Repeat([]v1alpha1.Slice{s}, v1alpha1.MaxSlicesPerDevice-len(d.Slices))...)
		}
		if s.Core > 0 {
			d.Slices = append(d.Slices, s)
		}
	}
	c.write(l)
	return "write " + l.Name
}

// shown has the ranking see what changed.
func (c *cluster) shown() {
	for _, name := range c.index.Changed() {
		if room, known := c.index.On(name); known {
			c.ranking.Set(name, room, c.hosts[name])
		} else {
			c.ranking.Delete(name)
		}
	}
}

// check compares the engine's free capacities to the index's.
func (c *cluster) check(after string) {
	c.t.Helper()
	seen := map[packer.NodeID]bool{}
	for name := range c.ledgers {
		room, _ := c.index.On(name)
		n := c.ranking.nodes[name]
		if room == nil && n == nil {
			continue
		}
		want := map[packer.Free]int{}
		if room != nil && !c.hosts[name].Aside {
			for i := range room.Devices {
				if d := &room.Devices[i]; d.Cut == nil && !d.MPSOnly && d.Slots > 0 && d.FreeCore >= 0 && d.FreeMem >= 0 && d.FreeCore+v1alpha1.Percent(d.FreeMem) > 0 {
					want[packer.Free{Core: 10 * packer.Milli(d.FreeCore), Mem: d.FreeMem}]++
				}
			}
		}
		got := map[packer.Free]int{}
		for _, p := range n.parts {
			seen[p.id] = true
			cpu, mem, free := c.ranking.engine.Free(p.id)
			if h := c.hosts[name]; !h.Aside && (cpu != max(0, h.CPU) || mem != max(0, h.Mem)) {
				c.t.Fatalf("after %s: the engine has %d CPU and %d MiB of %s, the host %+v", after, cpu, mem, name, h)
			}
			for _, f := range free {
				if f != (packer.Free{}) {
					got[f]++
				}
			}
			for i, near := range c.ranking.engine.Near(p.id)[:len(p.devices)] {
				if room != nil && !c.hosts[name].Aside && near != room.Devices[p.devices[i]].Near {
					c.t.Fatalf("after %s: the engine has %+v of %s, the index %+v", after, near, name, room.Devices[p.devices[i]].Near)
				}
			}
		}
		if !maps.Equal(got, want) {
			c.t.Fatalf("after %s: the engine has %v of %s, the index %v", after, got, name, want)
		}
	}
	for level, n := range c.ranking.linked {
		for _, room := range c.index.Room() {
			if slices.ContainsFunc(room.Devices, func(d placement.Device) bool {
				return slices.ContainsFunc(room.Devices, func(e placement.Device) bool { return d.UUID != e.UUID && level.Within(d.Near, e.Near) })
			}) {
				n--
			}
		}
		if n != 0 {
			c.t.Fatalf("after %s: %d nodes too many have devices at level %s", after, n, level)
		}
	}
	for id := range c.ranking.parts {
		if _, _, free := c.ranking.engine.Free(packer.NodeID(id)); !seen[packer.NodeID(id)] && slices.ContainsFunc(free, func(f packer.Free) bool { return f != packer.Free{} }) {
			c.t.Fatalf("after %s: number %d, which is no node's, has %v", after, id, free)
		}
	}
}

// checkPlans asserts that plans are made for exactly the nodes that have the room,
// those aside last, each where it fits, on the devices that placement.Fit chooses. Those with instances of MIG come before.
func (c *cluster) checkPlans(a *Ask) (nodes int) {
	c.t.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	for _, room := range c.index.Room() {
		h := c.hosts[room.Name]
		if _, fits := placement.Fit(a.Demand, room); fits && h.takes(a) {
			want[room.Name] = true
		}
	}
	// Each level begins with its instances of MIG.
	aside, first, level := false, a.MayCut(), 0
	levels := a.Levels()
	for plan, room := range c.ranking.Plans(a) {
		if shown, _ := c.index.On(plan.Node); shown != room {
			c.t.Fatalf("a plan on %s is not of the room that the index shows", plan.Node)
		}
		devices := map[string][]placement.Has{}
		for _, g := range plan.Grants {
			devices[g.Container] = append(devices[g.Container], placement.Has{UUID: g.UUID, MIG: g.MIG})
		}
		if again, ok := placement.Rebook(a.Demand, room, devices); !ok || !slices.Equal(again.Grants, plan.Grants) {
			c.t.Fatalf("Invariant 1: plan %+v of %+v does not fit into %+v", plan, a.Demand, room)
		}
		// What fit promises of the node, from its ledger alone.
		if fit, _ := placement.Fit(a.Demand, room); !got[plan.Node] && !slices.Equal(fit.Grants, plan.Grants) {
			c.t.Fatalf("%+v has %+v of %+v, fit says %+v", a.Demand, plan.Grants, room, fit.Grants)
		}
		if aside && !c.hosts[plan.Node].Aside && len(levels) < 2 {
			if !first {
				c.t.Fatalf("%s comes after nodes that are aside", plan.Node)
			}
			first = false
		}
		if aside = c.hosts[plan.Node].Aside; !aside && len(levels) > 0 && !got[plan.Node] {
			var near []v1alpha1.Near
			for _, d := range room.Devices {
				if slices.ContainsFunc(plan.Grants, func(g placement.Grant) bool { return g.UUID == d.UUID }) {
					near = append(near, d.Near)
				}
			}
			now := slices.IndexFunc(levels, func(l v1alpha1.TopologyLevel) bool { return l.Within(near...) })
			if now < level {
				c.t.Fatalf("%s has level %d of %v and comes after one of level %d", plan.Node, now, a.Topology, level)
			}
			level = now
		}
		got[plan.Node] = true
	}
	if !maps.Equal(got, want) {
		c.t.Fatalf("%+v %+v: plans on %v, room on %v", a, a.Demand, got, want)
	}
	return len(want)
}

// Whatever happens to ledgers and nodes, the engine has what the index has, and no
// node that has the room for a pod is left out.
func TestRankingFollowsTheIndex(t *testing.T) {
	none, some := 0, 0
	for seed := range int64(20) {
		c := newCluster(t, seed)
		for i := range 600 {
			what := fmt.Sprintf("seed %d, event %d: ", seed, i) + c.event(i)
			c.shown()
			c.check(what)
			if i%10 == 0 {
				c.ranking.Reprice()
			}
			if c.checkPlans(c.ask()) == 0 {
				none++
			} else {
				some++
			}
		}
	}
	if none < 500 || some < 2000 {
		t.Errorf("%d pods had no plan, %d had: the test no longer looks at both", none, some)
	}
}

// What the engine takes a pod to ask for of the host is never more than it does, so
// that no node is left out, and little less.
func TestCoarse(t *testing.T) {
	for n := range int64(100_000) {
		if got := coarse(n); got > n || (n-got)*16 > n {
			t.Fatalf("%d is %d", n, got)
		}
	}
}

// An idle slice goes where most compute is expected to be idle, whatever is packed where, and last to nodes
// that are set aside.
func TestPlansForIdleSlices(t *testing.T) {
	r := New()
	device := func(uuid string, idle v1alpha1.Percent, mem v1alpha1.MiB) placement.Device {
		return placement.Device{UUID: uuid, Model: "A", Mem: 1000, FreeMem: mem, FreeIdle: 100, FreeIdleMem: 1000, Idle: idle, Slots: 9}
	}
	r.Set("a", &placement.Node{Name: "a", Devices: []placement.Device{device("a0", 40, 500), device("a1", 90, 10)}}, Host{})
	r.Set("b", &placement.Node{Name: "b", Devices: []placement.Device{device("b0", 70, 1000), device("b1", 40, 1000)}}, Host{})
	r.Set("aside", &placement.Node{Name: "aside", Devices: []placement.Device{device("aside0", 100, 1000)}}, Host{Aside: true})
	ask := &Ask{Demand: &placement.Demand{Containers: []placement.Container{{Name: "c", Share: v1alpha1.Share{GPUs: 1, Idle: 30, MemMiB: 100}, Mode: v1alpha1.ModeLimiter}}}}
	r.Learn(ask)
	r.Expect(ask)
	var got []string
	for plan, room := range r.Plans(ask) {
		if room.Name != plan.Node {
			t.Errorf("a plan on %s for the room of %s", plan.Node, room.Name)
		}
		got = append(got, plan.Grants[0].UUID)
	}
	if want := []string{"b0", "a0", "b1", "aside0"}; !slices.Equal(got, want) {
		t.Errorf("planned on %v, want %v", got, want)
	}
}
