// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"reflect"
	"slices"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

func hook(stage, path string, args ...string) *specs.Hook {
	return &specs.Hook{HookName: stage, Path: path, Args: append([]string{"program"}, args...), Env: []string{"DEBUG=false"}}
}

// What the runtime would have run is what the one process runs, in that order.
func TestJoinedHooksAreThoseThatWere(t *testing.T) {
	seconds := 5
	slow := hook("createContainer", "/a", "slow")
	slow.Timeout = &seconds
	loud := hook("createContainer", "/a", "loud")
	loud.Env = []string{"DEBUG=true"}
	all := []*specs.Hook{
		hook("createContainer", "/a", "links", "--link", "x::y"),
		hook("createContainer", "/a", "cache", "--folder", "/lib"),
		hook("createContainer", "/b", "other"),
		hook("createContainer", "/a", "late"),
		hook("startContainer", "/a", "start"),
		slow,
		hook("startContainer", "/a", "after", "the", "slow", "one"),
		loud,
		hook("createContainer", "/a", "parted", "--", "by itself"),
		{HookName: "createContainer", Path: "/a"},
	}
	before := make([]specs.Hook, len(all))
	for i, h := range all {
		before[i] = *h
		before[i].Args = slices.Clone(h.Args)
	}
	joined := Join(all)
	if len(joined) != len(all)-1 {
		t.Errorf("%d hooks of %d, want only the first two joined", len(joined), len(all))
	}
	if got := slices.Collect(Split(joined[0].Args[1:])); !reflect.DeepEqual(got, [][]string{{"links", "--link", "x::y"}, {"cache", "--folder", "/lib"}}) {
		t.Errorf("joined as %q", got)
	}
	for i, h := range joined[1:] {
		if !reflect.DeepEqual(*h, before[i+2]) {
			t.Errorf("%+v, want it as it was: %+v", *h, before[i+2])
		}
	}
	for i, h := range all {
		if !reflect.DeepEqual(*h, before[i]) {
			t.Errorf("the caller's own hook is changed: %+v", *h)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		args []string
		want [][]string
	}{
		{nil, nil},
		{[]string{"one"}, [][]string{{"one"}}},
		{[]string{"one", "x", "--", "two"}, [][]string{{"one", "x"}, {"two"}}},
		{[]string{"--", "one", "--", "--", "two", "--"}, [][]string{{"one"}, {"two"}}},
	} {
		if got := slices.Collect(Split(c.args)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}
