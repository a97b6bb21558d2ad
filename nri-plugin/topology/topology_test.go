// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"math/rand/v2"
	"slices"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// pairs is near for these pairs.
func pairs(of ...[2]int) func(a, b int) bool {
	return func(a, b int) bool { return slices.Contains(of, [2]int{a, b}) || slices.Contains(of, [2]int{b, a}) }
}

func TestCliques(t *testing.T) {
	for name, c := range map[string]struct {
		n    int
		near func(a, b int) bool
		want []v1alpha1.DeviceSet
	}{
		"none":         {0, nil, nil},
		"alone":        {1, nil, nil},
		"all":          {8, func(int, int) bool { return true }, []v1alpha1.DeviceSet{"0-7"}},
		"no pair":      {8, func(int, int) bool { return false }, nil},
		"most devices": {32, func(int, int) bool { return true }, []v1alpha1.DeviceSet{"0-31"}},
		"bridges":      {5, pairs([2]int{0, 1}, [2]int{2, 3}), []v1alpha1.DeviceSet{"0-1", "2-3"}},
		"a chain":      {3, pairs([2]int{0, 1}, [2]int{1, 2}), []v1alpha1.DeviceSet{"0-1", "1-2"}},
		"larger first": {5, pairs([2]int{0, 4}, [2]int{1, 2}, [2]int{1, 3}, [2]int{2, 3}), []v1alpha1.DeviceSet{"1-3", "0,4"}},
		// As in a DGX-1: two squares with their diagonals, and a link from each corner to its like.
		"cube": {8, func(a, b int) bool { return a/4 == b/4 || a%4 == b%4 },
			[]v1alpha1.DeviceSet{"0-3", "4-7", "0,4", "1,5", "2,6", "3,7"}},
	} {
		if got := Cliques(c.n, c.near); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The sets are those of a search through all subsets.
func TestCliquesByBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := 2 + random.IntN(7)
		edges := make([][]bool, n)
		for a := range n {
			edges[a] = make([]bool, n)
			for b := range a {
				edges[a][b] = random.IntN(3) > 0
				edges[b][a] = edges[a][b]
			}
		}
		clique := func(m mask) bool {
			for _, a := range m.positions() {
				for _, b := range m.positions() {
					if a != b && !edges[a][b] {
						return false
					}
				}
			}
			return true
		}
		var want []v1alpha1.DeviceSet
		for m := range mask(1) << n {
			larger := false
			for p := range n {
				larger = larger || m&(1<<p) == 0 && clique(m|1<<p)
			}
			if m.len() > 1 && clique(m) && !larger {
				want = append(want, v1alpha1.DeviceSetOf(m.positions()))
			}
		}
		got := Cliques(n, func(a, b int) bool { return edges[a][b] })
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Fatalf("%v: %q, want %q", edges, got, want)
		}
	}
}

// Pairs chosen to make as many sets as there can be: all but those of one group of three.
func TestCliquesBounded(t *testing.T) {
	got := Cliques(v1alpha1.MaxDevices, func(a, b int) bool { return a/3 != b/3 })
	if len(got) != maxSets {
		t.Errorf("%d sets, want %d", len(got), maxSets)
	}
}

func TestNUMA(t *testing.T) {
	node := func(n int32) *int32 { return &n }
	devices := []v1alpha1.DeviceStatus{{NUMA: node(1)}, {NUMA: node(0)}, {}, {NUMA: node(1)}, {NUMA: node(3)}}
	if got := NUMA(devices); !slices.Equal(got, []v1alpha1.DeviceSet{"0,3", "1", "4"}) {
		t.Errorf("%q", got)
	}
}
