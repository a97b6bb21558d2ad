// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"math/rand"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// moments plays a pod's life as Kubernetes runs it and calls at with the
// containers that run at each moment. It is written without the package's phases.
func moments(containers []Container, at func(running []int)) {
	var sidecars []int
	for i, c := range containers {
		switch c.Kind {
		case Init:
			at(append([]int{i}, sidecars...))
		case Sidecar:
			sidecars = append(sidecars, i)
			at(sidecars)
		}
	}
	running := append([]int(nil), sidecars...)
	for i, c := range containers {
		if c.Kind == App {
			running = append(running, i)
		}
	}
	at(running)
}

// peakOf is the pod's peak on each device by playing its life.
func peakOf(d *Demand, n *Node, chosen [][]int) []Amount {
	peaks := make([]Amount, len(n.Devices))
	moments(d.Containers, func(running []int) {
		now := make([]Amount, len(n.Devices))
		for _, i := range running {
			for _, k := range chosen[i] {
				own, _ := d.Containers[i].load(&n.Devices[k])
				now[k] = now[k].Plus(own)
			}
		}
		for k := range now {
			peaks[k] = peaks[k].Most(now[k])
		}
	})
	return peaks
}

func holds(d *Demand, n *Node, chosen [][]int) bool {
	count := make([]int, len(n.Devices))
	for i := range chosen {
		for _, k := range chosen[i] {
			if d.SameGPU && k != chosen[0][0] {
				return false
			}
			count[k]++
			if _, ok := d.Containers[i].load(&n.Devices[k]); !ok {
				return false
			}
		}
	}
	for k, p := range peakOf(d, n, chosen) {
		if !p.Fits(n.Devices[k].Free()) || count[k] > n.Devices[k].Slots || count[k] > 0 && !d.UUIDs.Allows(n.Devices[k].UUID) {
			return false
		}
	}
	return true
}

// bruteForce tries every choice of devices.
func bruteForce(d *Demand, n *Node, chosen [][]int) bool {
	i := len(chosen)
	if i == len(d.Containers) {
		return holds(d, n, chosen)
	}
	for set := range 1 << len(n.Devices) {
		var devices []int
		for k := range n.Devices {
			if set>>k&1 == 1 {
				devices = append(devices, k)
			}
		}
		if len(devices) == int(d.Containers[i].Share.GPUs) && bruteForce(d, n, append(chosen[:i:i], devices)) {
			return true
		}
	}
	return false
}

// randomCase is a small pod and a small node, tight enough that about half fit.
func randomCase(r *rand.Rand) (*Demand, *Node) {
	n := &Node{Name: "n"}
	for i := range 1 + r.Intn(3) {
		mem := v1alpha1.MiB(60 + 40*r.Intn(2))
		n.Devices = append(n.Devices, Device{
			UUID: string(rune('a' + i)), Index: int32(i), Mem: mem,
			FreeCore: v1alpha1.Percent(r.Intn(101)), FreeMem: v1alpha1.MiB(r.Intn(int(mem) + 1)), Slots: r.Intn(6),
		})
	}
	// Like devices are what the search takes as interchangeable.
	if len(n.Devices) > 1 && r.Intn(2) == 0 {
		like := n.Devices[0]
		like.UUID, like.Index = n.Devices[1].UUID, 1
		n.Devices[1] = like
	}
	d := &Demand{Policy: []v1alpha1.Policy{v1alpha1.PolicyPack, v1alpha1.PolicySpread}[r.Intn(2)]}
	for i := range 1 + r.Intn(4) {
		c := Container{Name: string(rune('p' + i)), Kind: Kind(r.Intn(3)), Mode: v1alpha1.ModeLimiter}
		c.Share = v1alpha1.Share{GPUs: v1alpha1.DeviceCount(1 + r.Intn(2)), Core: v1alpha1.Percent(r.Intn(60))}
		if r.Intn(2) == 0 {
			c.Share.MemPercent = v1alpha1.Percent(1 + r.Intn(50))
		} else {
			c.Share.MemMiB = v1alpha1.MiB(1 + r.Intn(50))
		}
		d.Containers = append(d.Containers, c)
	}
	if r.Intn(4) == 0 {
		d.SameGPU = true
		for i := range d.Containers {
			d.Containers[i].Share.GPUs = 1
		}
	}
	if r.Intn(4) == 0 {
		d.UUIDs, _ = v1alpha1.ParseAllowList("!" + n.Devices[0].UUID)
	}
	return d, n
}

// checkPlan asserts what every plan must hold: distinct devices, the peak within
// the room (Invariant 1), and booked amounts that add up to exactly the peak.
func checkPlan(t *testing.T, d *Demand, n *Node, plan Plan) {
	t.Helper()
	at := map[string]int{}
	for k := range n.Devices {
		at[n.Devices[k].UUID] = k
	}
	chosen := make([][]int, len(d.Containers))
	booked := make([]Amount, len(n.Devices))
	g := 0
	for i, c := range d.Containers {
		seen := map[int]bool{}
		for range c.Share.GPUs {
			grant := plan.Grants[g]
			g++
			k := at[grant.UUID]
			own, _ := c.load(&n.Devices[k])
			switch {
			case grant.Container != c.Name || seen[k]:
				t.Fatalf("%+v %+v: grant %d is %+v", d, n, g-1, grant)
			case own != (Amount{Core: grant.Core, Mem: grant.Mem}):
				t.Fatalf("%+v: %s is granted %+v, asks for %+v", d, c.Name, grant, own)
			case grant.ReuseCore < 0 || grant.ReuseCore > grant.Core || grant.ReuseMem < 0 || grant.ReuseMem > grant.Mem:
				t.Fatalf("%+v: reuse out of range", grant)
			}
			seen[k] = true
			chosen[i] = append(chosen[i], k)
			booked[k] = booked[k].Plus(Amount{Core: grant.Core - grant.ReuseCore, Mem: grant.Mem - grant.ReuseMem})
		}
	}
	if g != len(plan.Grants) {
		t.Fatalf("%d grants, want %d", len(plan.Grants), g)
	}
	if !holds(d, n, chosen) {
		t.Fatalf("Invariant 1: %+v on %+v: %s exceeds the room", d, n, short(plan))
	}
	for k, peak := range peakOf(d, n, chosen) {
		if booked[k] != peak {
			t.Fatalf("%+v on %+v: %s books %+v on device %d, the peak is %+v", d, n, short(plan), booked[k], k, peak)
		}
	}
}

// A pod is placed if and only if some choice of devices holds at every moment.
func TestFitAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	fits := 0
	const cases = 20_000
	for range cases {
		d, n := randomCase(r)
		plan, ok := Fit(d, n)
		if want := bruteForce(d, n, nil); ok != want {
			t.Fatalf("%+v on %+v: fits %v, want %v", d, n, ok, want)
		}
		if got := Fits(d, n); got != ok {
			t.Fatalf("%+v on %+v: a plan is found: %v, a look says %v", d, n, ok, got)
		}
		if ok {
			fits++
			checkPlan(t, d, n, plan)
		} else if text := Explain(d, []*Node{n}).String(); text == "" {
			t.Fatal("no explanation")
		}
	}
	if fits < cases/10 || fits > cases*9/10 {
		t.Errorf("%d of %d cases fit: the test no longer looks at both", fits, cases)
	}
}

// The order in which nodes are given does not matter.
func TestRankIgnoresOrder(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	for range 500 {
		d, _ := randomCase(r)
		var nodes []*Node
		for i := range 6 {
			_, n := randomCase(r)
			n.Name = string(rune('A' + i))
			nodes = append(nodes, n)
		}
		first := Rank(d, nodes)
		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		second := Rank(d, nodes)
		for i := range first {
			if short(first[i]) != short(second[i]) {
				t.Fatalf("%s, then %s", short(first[i]), short(second[i]))
			}
		}
	}
}

// FuzzBook looks for a pod whose booked amounts differ from its peak.
func FuzzBook(f *testing.F) {
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) {
		d, n := randomCase(rand.New(rand.NewSource(seed)))
		if plan, ok := Fit(d, n); ok {
			checkPlan(t, d, n, plan)
		}
	})
}
