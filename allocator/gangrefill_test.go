// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// What is missing from a gang that runs goes before equals that wait for longer, and says so; before
// those of a higher priority it does not go.
func TestGang_WhenAMemberIsLost(t *testing.T) {
	for name, tt := range map[string]struct {
		lost  int
		other []func(*corev1.Pod)
		first bool
	}{
		"one":                        {1, nil, true},
		"two, which start together":  {2, nil, true},
		"others of higher priority":  {1, []func(*corev1.Pod){objects.Priority(1), neverPreempts}, false},
		"two and higher priorities":  {2, []func(*corev1.Pod){objects.Priority(1), neverPreempts}, false},
		"many that wait for as long": {1, []func(*corev1.Pod){func(*corev1.Pod) {}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			const members = 4
			s := newStage(t, members/2, reserving)
			others := 3 * tt.lost
			if len(tt.other) == 1 {
				others = 100
			}
			for i := range members {
				s.add(fmt.Sprint("m", i), 60, 600, s.created, objects.InGang("g", members))
			}
			s.work()
			for i := range others {
				s.add(fmt.Sprintf("o%02d", i), 60, 600, append(tt.other, s.created)...)
			}
			s.work()
			s.clock.Step(time.Second)
			for i := range tt.lost {
				s.vanish(s.get(fmt.Sprint("m", i)))
			}
			s.work() // equals have the room before it is made again
			s.newEvents()
			var again, took []string
			for i := range tt.lost {
				again = append(again, fmt.Sprint("m", i))
				s.add(again[i], 60, 600, s.again, objects.InGang("g", members))
			}
			s.work()
			for i := range others {
				if name := fmt.Sprintf("o%02d", i); s.atTheGate(name) == "" {
					took = append(took, name)
				}
			}
			want := fmt.Sprintf("Kueue's pod group ns/g has %d of %d pods and its missing ones go before others of their priority: ", members-tt.lost, members)
			s.says(want)
			if len(took) != tt.lost || s.atTheGate(again...) != strings.Join(again, " ") {
				t.Fatalf("%v have the room", took)
			}
			for _, name := range took {
				s.vanish(s.get(name))
			}
			s.work()
			if got := s.atTheGate(again...) == ""; got != tt.first {
				t.Errorf("what is missing went first: %v, want %v; events %q", got, tt.first, s.newEvents())
			}
		})
	}
}

// The gang is whole again: one member more than there must be goes by its age.
func TestGang_WhenItIsWhole(t *testing.T) {
	s := newStage(t, 1)
	s.add("m0", 60, 600, s.created, objects.InGang("g", 1))
	s.add("other", 60, 600, s.created)
	s.work()
	s.add("first", 60, 600, s.created)
	s.work()
	s.clock.Step(time.Second)
	s.add("m1", 60, 600, s.created, objects.InGang("g", 1))
	s.work()
	s.forget("other")
	s.expect("first:* m1")
}

// Smaller pods of its priority don't take the room bit by bit.
func TestGang_WhenALargeMemberIsLost(t *testing.T) {
	s := newStage(t, 1, reserving)
	for i := range 2 {
		s.add(fmt.Sprint("m", i), v1alpha1.WholeGPU, 1, s.created, objects.InGang("g", 2))
	}
	s.work()
	for i := range 4 {
		s.add(fmt.Sprint("half", i), 50, 1, s.created)
	}
	s.work()
	s.clock.Step(time.Second)
	s.forget("m0")
	s.expect("half0:* half1:* half2 half3")
	s.add("m0", v1alpha1.WholeGPU, 1, s.again, objects.InGang("g", 2))
	s.work()
	for _, name := range []string{"half0", "half1"} {
		s.expect("half2 half3")
		s.forget(name)
	}
	s.expect("m0:* half2 half3")
}

// Nor is it kept from room that is reserved for an equal, which waits for longer.
func TestGang_WhenTheRoomIsReserved(t *testing.T) {
	s := newStage(t, 1, reserving)
	s.add("m0", v1alpha1.WholeGPU, 1, s.created, objects.InGang("g", 2), endsAfter(4*time.Hour))
	s.add("m1", v1alpha1.WholeGPU, 1, s.created, objects.InGang("g", 2))
	s.work()
	s.add("large", v1alpha1.WholeGPU, 1, s.created)
	s.work()
	s.pass(10 * time.Minute)
	all := s.allocator.reservations.All()
	if on := s.devicesOf("n0", "m0")[0]; len(all) != 1 || all[0].Plans[0].Grants[0].UUID != on {
		t.Fatalf("reserved %+v, want what m0 is on, %s", all, on)
	}
	s.vanish(s.get("m0"))
	s.add("m0", v1alpha1.WholeGPU, 1, s.again, objects.InGang("g", 2))
	s.readAll()
	s.work()
	s.expect("m0:* large")
}

// Nobody goes before others with large pods for having small ones that run.
func TestHostileGangOfSmallPodsGoesByItsAge(t *testing.T) {
	s := newStage(t, 1)
	s.add("m0", 1, 1, s.created, objects.InGang("g", 2))
	s.add("m1", 1, 1, s.created, objects.InGang("g", 2))
	s.add("other0", 95, 1, s.created)
	s.add("other1", 95, 1, s.created)
	s.work()
	s.add("first", 95, 1, s.created)
	s.work()
	s.clock.Step(time.Second)
	s.forget("m0")
	s.add("m0", 95, 1, s.again, objects.InGang("g", 2))
	s.work()
	s.forget("other0")
	s.expect("first:* m0")
	if p := s.get("first"); p.UID != types.UID("first") {
		t.Fatal("another pod")
	}
}

// Hostile: a gang that is made larger, again and again, misses nothing: its new pods go by their age.
func TestHostileGangThatGrowsGoesByItsAge(t *testing.T) {
	s := newStage(t, 2, reserving)
	for i := range 3 {
		s.add(fmt.Sprint("m", i), 60, 600, s.created, objects.InGang("g", 3))
	}
	s.add("full", 60, 600, s.created)
	s.work()
	s.add("older", 60, 600, s.created)
	s.work()
	s.clock.Step(time.Second)
	for i := range 3 {
		p := s.get(fmt.Sprint("m", i))
		objects.InGang("g", 4)(p)
		s.put(p)
	}
	s.add("m3", 60, 600, s.created, objects.InGang("g", 4))
	s.work()
	s.forget("full")
	s.expect("older:* m3")
}
