// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/test/objects"
	"vernier.dev/vernier/test/podgroups"
)

// stageOf is a stage where these PodGroups are.
func stageOf(t *testing.T, nodes int, groups ...*unstructured.Unstructured) *stage {
	t.Helper()
	return newStage(t, nodes, func(w *world) { w.sizes = podgroups.Read(t, groups...) })
}

func memberOf(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(name)} }
}

// The members of a group with a topology constraint are on nodes with the same value of its
// label: all that start together, one that is made again, and one that comes late.
func TestGroupWithinOneRack(t *testing.T) {
	const key = corev1.LabelTopologyZone
	within := func(least int64) *unstructured.Unstructured {
		return podgroups.Within(podgroups.Native("ns", "g", least), key)
	}
	t.Run("where all have room, and the fullest such", func(t *testing.T) {
		s := stageOf(t, 6, within(3))
		s.zones("aabbcc")
		s.use("n0", 0, 90) // a has room for three, and more is used there than in c
		s.use("n2", 0, 90)
		s.use("n3", 0, 90)
		for i := range 3 {
			s.add(fmt.Sprint("m", i), 70, 700, memberOf("g"))
		}
		s.work()
		if got := s.seats("m0", "m1", "m2"); strings.Count(got, ":") != 3 || strings.Count(got, "n0")+strings.Count(got, "n1") != 3 {
			t.Errorf("placed %q; events %q", got, s.newEvents())
		}
	})
	t.Run("no rack has room for all", func(t *testing.T) {
		s := stageOf(t, 4, within(3))
		s.zones("abcc")
		s.use("n0", 0, 40) // nearer to what is missing, and elsewhere
		s.use("n0", 1, 40)
		s.use("n2", 0, 90)
		s.use("n3", 0, 90)
		for i := range 3 {
			s.add(fmt.Sprint("m", i), 70, 700, memberOf("g"))
		}
		s.work()
		sent := strings.Join(s.newEvents(), "\n")
		if got := s.seats("m0", "m1", "m2"); got != "" || !strings.Contains(sent, "room for 2 of the 3 pods that must start together on nodes of one "+key+"; most is in c; pod ns/m") ||
			!strings.Contains(sent, "nearest: n") || strings.Contains(sent, "nearest: n0") || strings.Contains(sent, "would not be enough") {
			t.Errorf("placed %q; events %q", got, sent)
		}
	})
	t.Run("too small a rack, were it empty", func(t *testing.T) {
		s := stageOf(t, 4, within(5))
		s.zones("aabb")
		for i := range 5 {
			s.add(fmt.Sprint("m", i), 70, 700, memberOf("g"))
		}
		s.work()
		s.says("all GPUs of one " + key + " would not be enough for 5")
	})
	t.Run("beside those that run", func(t *testing.T) {
		for least, first := range map[int64]int{1: 1, 2: 2} {
			s := stageOf(t, 4, within(least))
			s.zones("aabb")
			s.use("n2", 0, 50) // a pod alone would go there
			for i := range first {
				s.add(fmt.Sprint("m", i), 60, 600, memberOf("g"), objects.OnNode("n1"))
			}
			s.work()
			s.add("late", 50, 500, memberOf("g"))
			s.work()
			if got := s.seats("late"); got != "late:n1" && got != "late:n0" {
				t.Errorf("at least %d: placed %q; events %q", least, got, s.newEvents())
			}
			for _, n := range []string{"n0", "n1"} {
				s.use(n, 0, 0)
			}
		}
	})
	t.Run("beside one that a leader before has begun to place", func(t *testing.T) {
		s := stageOf(t, 4, within(2))
		s.zones("aabb")
		s.use("n0", 0, 50)
		s.use("n0", 1, 50)
		s.add("m0", 60, 600, memberOf("g"))
		s.grant("n3", "m0", 0, 60, 600)
		s.readAll()
		s.add("m1", 50, 500, memberOf("g"))
		s.work()
		if got := s.seats("m0", "m1"); got != "m0:n3 m1:n3" && got != "m0:n3 m1:n2" {
			t.Errorf("placed %q; events %q", got, s.newEvents())
		}
	})
	t.Run("no room beside those that run", func(t *testing.T) {
		s := stageOf(t, 3, within(1))
		s.zones("abb")
		s.add("m0", 60, 600, memberOf("g"), objects.OnNode("n0"))
		s.work()
		s.use("n0", 1, 90)
		s.add("late", 70, 700, memberOf("g"))
		s.work()
		if got, sent := s.seats("late"), strings.Join(s.newEvents(), "\n"); got != "" || !strings.Contains(sent, "on nodes of one "+key+"; most is in a") {
			t.Errorf("placed %q; events %q", got, sent)
		}
	})
	t.Run("past many racks that the pods may not go to", func(t *testing.T) {
		s := stageOf(t, scheduling.MaxWithin+6, podgroups.Within(podgroups.Native("ns", "g", 2), corev1.LabelHostname))
		s.add("m0", 70, 700, memberOf("g"), objects.OnNode("n8")) // one of the last by name
		s.add("m1", 70, 700, memberOf("g"), objects.OnNode("n8"))
		s.work()
		s.expect("m0:n8 m1:n8")
	})
	t.Run("no rack that the pods may go to", func(t *testing.T) {
		s := stageOf(t, 2, within(2))
		s.zones("ab")
		s.add("m0", 10, 100, memberOf("g"), objects.OnNode("n7"))
		s.add("m1", 10, 100, memberOf("g"), objects.OnNode("n7"))
		s.work()
		if sent := strings.Join(s.newEvents(), "\n"); strings.Contains(sent, "no node that takes slices has label") || !strings.Contains(sent, "didn't match node selector kubernetes.io/hostname=n7") {
			t.Errorf("events %q", sent)
		}
	})
	t.Run("no node has the label", func(t *testing.T) {
		s := stageOf(t, 2, podgroups.Within(podgroups.Native("ns", "g", 2), "example.com/rack"))
		s.add("m0", 10, 100, memberOf("g"))
		s.add("m1", 10, 100, memberOf("g"))
		s.work()
		if got, sent := s.seats("m0", "m1"), strings.Join(s.newEvents(), "\n"); got != "" || !strings.Contains(sent, "no node that takes slices has label example.com/rack") || strings.Contains(sent, "would not be enough") {
			t.Errorf("placed %q; events %q", got, sent)
		}
	})
}

// A gang that waits for nodes of one rack is looked at when nodes get other labels: no room
// comes with these.
func TestGroupWithinOneRackIsRelabelled(t *testing.T) {
	for name, before := range map[string]string{"none had the label": "", "in racks that were too small": "abc"} {
		t.Run(name, func(t *testing.T) {
			s := stageOf(t, 3, podgroups.Within(podgroups.Native("ns", "g", 3), corev1.LabelTopologyZone))
			if before != "" {
				s.zones(before)
			}
			for i := range 3 {
				s.add(fmt.Sprint("m", i), 100, 1000, memberOf("g"))
			}
			s.use("n0", 0, 50)
			s.use("n1", 0, 50)
			s.work()
			s.expect("m0 m1 m2")
			s.zones("aab")
			s.pass(queue.RefusedDelay)
			s.expect("m0 m1 m2")
			s.zones("bbb")
			s.pass(queue.RefusedDelay)
			s.expect("m0:* m1:* m2:*")
		})
	}
}

// A tenant names the label, which may have as many values as there are nodes: where none has the
// devices the search pauses as well, between them.
func TestHostileGroupWithinManyValues(t *testing.T) {
	s := stageOf(t, 24, podgroups.Within(podgroups.Native("ns", "g", 3), corev1.LabelTopologyZone))
	s.zones("abcdefghijklmnopqrstuvwx")
	for i := range 3 {
		s.add(fmt.Sprint("m", i), 100, 1000, memberOf("g"))
	}
	s.readAll()
	s.slow(10 * time.Millisecond)
	name, _ := podrequest.GroupOf(s.get("m0"))
	paused := 0
	for range 20 {
		s.step()
		if s.allocator.scheduler.Searches()[name].Begun {
			paused++
		}
	}
	if sent := strings.Join(s.newEvents(), "\n"); paused == 0 || !strings.Contains(sent, "room for 2 of the 3 pods") {
		t.Errorf("paused %d times; events %q", paused, sent)
	}
}
