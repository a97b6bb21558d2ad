// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A gang that has to be in one zone, or beside one of it, goes where there is room for all
// of it, and not where the first would have gone alone.
func TestGangGoesWhereAllHaveRoom(t *testing.T) {
	t.Run("one zone", func(t *testing.T) {
		s := newStage(t, 4)
		s.zones("aabb")
		s.use("n0", 0, 90)
		s.addGang(4, 70, 700, objects.Labelled("x"), objects.Near("x"), inZone)
		s.work()
		s.expect("m0:n2 m1:n2 m2:n3 m3:n3")
	})
	t.Run("one node", func(t *testing.T) {
		s := newStage(t, 3)
		s.use("n0", 0, 90)
		s.use("n0", 1, 80)
		s.use("n1", 0, 90)
		s.use("n1", 1, 80)
		s.add("leader", 10, 100, objects.InGang("g", 3), objects.Labelled("leader"))
		s.add("w0", 60, 600, objects.InGang("g", 3), objects.Near("leader"))
		s.add("w1", 60, 600, objects.InGang("g", 3), objects.Near("leader"))
		s.work()
		s.expect("leader:n2 w0:n2 w1:n2")
	})
	t.Run("one zone, of pods that are not alike", func(t *testing.T) {
		s := newStage(t, 3)
		s.zones("abb")
		s.use("n0", 0, 90)
		s.use("n1", 0, 90)
		s.use("n1", 1, 70)
		for i, core := range []v1alpha1.Percent{90, 80, 30} {
			s.add(fmt.Sprintf("m%d", i), core, 10, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"), inZone)
		}
		s.work()
		if got := s.seats("m0", "m1", "m2"); strings.Count(got, ":") != 3 || strings.Contains(got, "n0") {
			t.Errorf("placed %q; events %q", got, s.newEvents())
		}
	})
	// One more than there must be is no reason to look elsewhere, and one that goes by
	// nobody is not bound to the others' place.
	t.Run("a zone for enough of them", func(t *testing.T) {
		s := newStage(t, 3)
		s.zones("abb")
		s.use("n0", 0, 95)
		for _, node := range []string{"n1", "n2"} {
			s.use(node, 0, 90)
		}
		s.addGang(3, 70, 700, objects.Labelled("x"), objects.Near("x"), inZone)
		s.add("free", 60, 600, objects.InGang("g", 3))
		s.work()
		s.expect("m0:n1 m1:n2 m2 free:n0")
	})
}

// A member that goes by another is decided on before it where it has one place only, and
// the other would take it.
func TestGangLeavesRoomForWhoFollows(t *testing.T) {
	spread := func(p *corev1.Pod) {
		objects.SpreadFrom(p)
		p.Spec.TopologySpreadConstraints[0].MinDomains = ptr.To(int32(2))
	}
	for _, wish := range map[string]func(*corev1.Pod){"affinity": objects.Near("x"), "spread": spread} {
		s := newStage(t, 1)
		s.add("first", 70, 700, objects.InGang("g", 2), objects.Labelled("x"))
		s.add("picky", 60, 600, objects.InGang("g", 2), onDevice("GPU-n0-0"), wish)
		s.work()
		s.expect("first:n0 picky:n0")
	}
}

// Invariant 7: nobody is let go by that who is not where the scheduler takes it, which is
// beside the others, and not beside itself.
func TestGangIsJudgedBesideAll(t *testing.T) {
	for _, app := range []string{"x", "y"} {
		s := newStage(t, 2)
		s.use("n0", 1, 90)
		s.add("first", 70, 700, objects.InGang("g", 2), objects.Labelled("x"))
		s.add("picky", 60, 600, objects.InGang("g", 2), onDevice("GPU-n0-0"), objects.Near("x"), objects.Labelled(app))
		s.work()
		s.expect("first picky")
		// Nothing of the tries is left behind.
		s.add("alone", 100, 1000)
		s.add("beside", 70, 700, objects.Labelled("z"), objects.Near("z"))
		s.work()
		s.expect("alone:* beside:*")
	}
}

// What a gang was told a moment ago does not keep it from being tried in other orders when
// there is room again.
func TestGang_WhenThereIsRoomAgain_IsTriedInOtherOrders(t *testing.T) {
	for _, hopeless := range []bool{false, true} {
		s := newStage(t, 1)
		s.use("n0", 0, 90)
		s.use("n0", 1, 90)
		s.add("anywhere", 70, 700, objects.InGang("g", 2))
		s.add("picky", 60, 600, objects.InGang("g", 2), onDevice("GPU-n0-0"))
		if hopeless {
			s.add("hopeless", 90, 900, objects.InGang("g", 2), onDevice("GPU-n9-9"))
		}
		s.work()
		if len(s.newEvents()) == 0 {
			t.Fatal("not sent that there is no room")
		}
		s.pass(time.Second)
		l := s.ledger("n0")
		l.Spec.Devices = nil
		s.put(l)
		s.work()
		s.expect("anywhere:n0 picky:n0")
	}
}

// A member whose affinity none of the others can meet is tried only where it is met, also
// before those that one of its terms selects.
func TestGangGoesByThoseOutside(t *testing.T) {
	s := newStage(t, 3)
	tier := func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "tier", "db") }
	both := func(p *corev1.Pod) {
		terms := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*terms = append(*terms, corev1.PodAffinityTerm{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "db"}}})
	}
	s.add("outside", 10, 10, objects.Labelled("x"), tier, onDevice("GPU-n1-0"))
	s.work()
	s.bind()
	s.use("n0", 0, 20)
	s.use("n1", 1, 90)
	s.add("first", 70, 700, objects.InGang("g", 2), objects.Labelled("x"), onDevice("GPU-n1-0,GPU-n2-0"))
	s.add("picky", 60, 600, objects.InGang("g", 2), onDevice("GPU-n0-0,GPU-n1-0"), objects.Near("x"), both)
	s.work()
	s.expect("first:n2 picky:n1")
}

// Nor are pods alike of which one is shunned where another may be: it goes first then.
func TestOneOfAGangIsShunned(t *testing.T) {
	shuns := func(role string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}}}}}
		}
	}
	role := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "role", name) }
	}
	for leader, want := range map[string]string{"m0": "m0:n1 m1:n0", "m1": "m0:n0 m1:n1"} {
		roles := map[string]string{"m0": "worker", "m1": "worker"}
		roles[leader] = "leader"
		s := newStage(t, 2)
		s.add("guard", 10, 10, objects.OnNode("n0"), shuns("leader"))
		// The fuller node is the first choice of both members, and has room for one.
		s.add("other", 60, 600, objects.OnNode("n1"))
		s.add("another", 60, 600, objects.OnNode("n1"))
		s.work()
		closed, open := objects.Node("n0"), objects.Node("n0")
		closed.Spec.Unschedulable = true
		s.allocator.SetNode(open, closed)
		for member, name := range roles {
			s.add(member, 40, 40, objects.InGang("g", 2), role(name), objects.CPU("40"))
		}
		s.work()
		s.expect("m0 m1")
		s.allocator.SetNode(closed, open)
		s.pass(queue.RefusedDelay)
		if got := s.seats("m0", "m1"); got != want {
			t.Errorf("placed %q, want %q; events %q", got, want, s.newEvents())
		}
	}
}

// A gang that goes to one place and does not fit costs a bounded number of tries at each look,
// and one for each place where its pods are alike.
func TestTriesAreBounded(t *testing.T) {
	const zones, ofZone, members = scheduling.MaxDomains + 2, scheduling.MaxOrders + 2, 2*scheduling.MaxOrders + 4
	port := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }
	for alike, most := range map[bool]int{true: 1 + scheduling.MaxDomains, false: scheduling.MaxOrders + 1 + scheduling.MaxDomains*(scheduling.DomainOrders+1)} {
		s := newStage(t, zones*ofZone)
		s.zones(strings.Repeat("abcdefghijklmnopqrstuvwxyz"[:zones], ofZone))
		for i := range members {
			own := func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "index", strconv.Itoa(i)) }
			if !alike {
				own = objects.CPU(fmt.Sprint(i, "m"))
			}
			s.add(fmt.Sprintf("m%d", i), 10, 10, objects.InGang("g", members), objects.Labelled("x"), objects.Near("x"), inZone, port, own)
		}
		s.work()
		const metric = "nodes_judged"
		before := int(measured(t, metric))
		s.lookAgain()
		// The ports are enough for as many as a zone has nodes, and not for one more.
		if got, want := int(measured(t, metric))-before, most*(ofZone+1); got != want {
			t.Errorf("alike %v: %d decisions in a look, want %d", alike, got, want)
		}
		s.expect("m0 m1")
	}
}

// A gang that waits because the scheduler refuses one of it is not looked at again before
// something changes: that it was tried is no change.
func TestGang_WhenNothingChanges_IsNotLookedAt(t *testing.T) {
	const metric = "nodes_judged_sum"
	s := newStage(t, 2)
	s.add("m0", 60, 600, objects.InGang("g", 2))
	s.add("m1", 60, 600, objects.InGang("g", 2), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	s.work()
	s.pass(queue.RefusedDelay)
	before := measured(t, metric)
	for range 3 {
		s.pass(queue.RefusedDelay)
	}
	if judged := measured(t, metric) - before; judged > 0 {
		t.Errorf("%v nodes judged for a gang to which nothing has happened", judged)
	}
	old := objects.Node("n1")
	ssd := old.DeepCopy()
	ssd.Labels["disk"] = "ssd"
	s.allocator.SetNode(old, ssd)
	s.pass(queue.RefusedDelay)
	s.expect("m0:* m1:*")
}

// A gang whose members select each other in a circle has no order in which each comes after those
// that it selects. Wherever it goes each is taken beside all others, since the scheduler binds them
// in an order of its own.
func TestGangOfACircle(t *testing.T) {
	members := []struct {
		core      v1alpha1.Percent
		app, near string
		wide      bool
	}{{11, "y", "y", false}, {10, "x", "y", true}, {37, "y", "x", true}, {13, "x", "x", false}}
	for _, order := range permutations(len(members)) {
		for _, zones := range []string{"aaaa", "aabb"} {
			s := newStage(t, len(zones))
			s.zones(zones)
			for _, m := range order {
				member := members[m]
				edits := []func(*corev1.Pod){objects.InGang("g", len(members)), objects.Labelled(member.app), objects.Near(member.near), func(p *corev1.Pod) {
					p.Annotations[v1alpha1.AnnotationPolicy] = string(v1alpha1.PolicySpread)
				}}
				if member.wide {
					edits = append(edits, inZone)
				}
				s.add(fmt.Sprintf("m%d", m), member.core, 50, edits...)
			}
			s.work()
			at := strings.Fields(s.seats("m0", "m1", "m2", "m3"))
			if len(at) != len(members) {
				t.Errorf("order %v, zones %s: placed %v, want all; events %q", order, zones, at, s.newEvents())
				continue
			}
			node := func(m int) string { _, n, _ := strings.Cut(at[m], ":"); return n }
			if node(0) != node(2) || node(1) != node(3) {
				t.Errorf("order %v, zones %s: %v: m0 has to be beside m2, and m3 beside m1", order, zones, at)
			}
		}
	}
}

// permutations are all orders of the first n numbers.
func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), i, n-1))
		}
	}
	return all
}
