// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"maps"
	"strings"
	"testing"

	"vernier.dev/vernier/webhook/demand"
)

func TestParseComputeShares(t *testing.T) {
	got, err := demand.ParseComputeShares("team-a=20,team-b=required,team-c=0,*=5", demand.Minimum{Percent: 5})
	want := demand.ComputeShares{"team-a": {Default: 20}, "team-b": {Required: true}, "team-c": {}, "*": {Default: 5}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for namespace, rule := range map[string]demand.Compute{"team-a": {Default: 20}, "team-c": {}, "unnamed": {Default: 5}} {
		if in := got.In(namespace); in != rule {
			t.Errorf("namespace %s has %+v, want %+v", namespace, in, rule)
		}
	}
	for list, says := range map[string]string{
		"team-a":                "of namespace team-a: write required, or a whole percent",
		"team-a=":               "of namespace team-a",
		"team-a=101":            "from 0 to 100",
		"team-a=-1":             "of namespace team-a",
		"team-a=2.5":            "of namespace team-a",
		"team-a=Required":       "of namespace team-a",
		"=20":                   "does not begin with a namespace",
		"Team=20":               "does not begin with a namespace",
		"team-a=20,":            "does not begin with a namespace",
		"team-a=20,team-a=30":   "names team-a twice",
		"team-a=4":              "below the least share of 5 percent",
		"*=20,team-b=required,": "does not begin with a namespace",
	} {
		if _, err := demand.ParseComputeShares(list, demand.Minimum{Percent: 5}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", list, err, says)
		}
	}
}
