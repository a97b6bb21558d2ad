// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/test/objects"
)

func member(name string, total int, edits ...func(*corev1.Pod)) *corev1.Pod {
	return objects.Single(name, objects.Share(10, 100), append([]func(*corev1.Pod){objects.InGang("g", total)}, edits...)...)
}

func ungated(p *corev1.Pod) { p.Spec.SchedulingGates = nil }

func awaitsOther(p *corev1.Pod) {
	p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/other"})
}

func failed(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

// A gang counts its members by how far they have come.
func TestGang(t *testing.T) {
	gs := New(&podgroup.Sizes{})
	var name podrequest.Group
	for _, p := range []*corev1.Pod{member("due", 4), member("away", 4, awaitsOther), member("in", 4, ungated), member("failed", 4, failed)} {
		name = gs.Update(p)[0]
	}
	g := gs.Gang(name)
	if got := fmt.Sprint(len(g.Members), len(g.Due), g.In, g.Least, g.Gates, g.Missing(), g.Enough(), g.Err); got != "3 1 1 4 [example.com/other] 3 false <nil>" {
		t.Errorf("the gang is %s", got)
	}
	if got, want := g.Incomplete(), ": 3 of 4 pods are there, 1 of them wait(s) for scheduling gates of others: [example.com/other]; they start together"; !strings.Contains(got, want) {
		t.Errorf("incomplete: %q, want %q in it", got, want)
	}
	if gs.Gang(name) != g {
		t.Error("worked out again although nothing has changed")
	}
	gs.Update(member("due", 4, ungated))
	if g := gs.Gang(name); g.In != 2 || len(g.Due) != 0 {
		t.Errorf("%d are in and %d due after one was ungated", g.In, len(g.Due))
	}
}

// An update says which gangs it may concern: most of pods that run concern none.
func TestUpdate(t *testing.T) {
	gs := New(&podgroup.Sizes{})
	for _, step := range []struct {
		what string
		pod  *corev1.Pod
		want int
	}{
		{"a member", member("a", 2), 1},
		{"the member while it is due", member("a", 2), 1},
		{"the member ungated", member("a", 2, ungated), 1},
		{"the member that runs", member("a", 2, ungated, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), 0},
		{"the member in another group", member("a", 2, objects.InGang("h", 2)), 2},
		{"a pod of no group", objects.Single("b", objects.Share(1, 1)), 0},
	} {
		if got := gs.Update(step.pod); len(got) != step.want {
			t.Errorf("%s concerns %v, want %d", step.what, got, step.want)
		}
	}
	g := gs.Gang(gs.Update(member("a", 2))[0])
	n := len(gs.Delete(member("a", 2)))
	if gs.Split(g); n != 1 || len(gs.members)+len(gs.of)+len(gs.seen)+len(gs.whole)+len(gs.split) > 0 {
		t.Errorf("its deletion concerns %d, or something is kept of a gang that went while it was looked at", n)
	}
}

// Where any one member is enough, each is placed by itself, until one is lost.
func TestSplit(t *testing.T) {
	gs := New(&podgroup.Sizes{})
	a, b := member("a", 1), member("b", 1)
	name := gs.Update(a)[0]
	old := gs.Gang(name)
	gs.Update(b)
	if split, single := gs.Split(old); !split || len(single) != 1 {
		t.Errorf("a gang of one: split %v, %d looked at", split, len(single))
	}
	if _, with := gs.PlacedWith(b); !with {
		t.Error("b is placed by itself, and was not known when that was decided")
	}
	if split, single := gs.Split(gs.Gang(name)); !split || len(single) != 2 || !gs.Alone(b) {
		t.Errorf("a gang of one with two: split %v, %d looked at", split, len(single))
	}
	if _, with := gs.PlacedWith(b); with {
		t.Error("b is placed with others")
	}
	if split, single := gs.Split(gs.Gang(name)); !split || len(single) != 0 {
		t.Errorf("once more: split %v, %d looked at", split, len(single))
	}
	gs.Update(member("a", 1, failed))
	if _, with := gs.PlacedWith(b); !with {
		t.Error("b is placed by itself after one was lost")
	}
	gs.Update(member("c", 3))
	gs.Update(member("b", 3))
	if split, _ := gs.Split(gs.Gang(name)); split || gs.Alone(b) {
		t.Error("split although three must start together")
	}
}
