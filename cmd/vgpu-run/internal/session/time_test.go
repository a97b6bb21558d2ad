// SPDX-License-Identifier: Apache-2.0

package session

import (
	"os"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// TestOneLeads: one process at a time leads, and another takes over when it ends.
func TestOneLeads(t *testing.T) {
	dir := t.TempDir()
	first := lead(dir)
	if first == nil || lead(dir) != nil {
		t.Fatal("want the first to lead, and no second one")
	}
	if err := first.Close(); err != nil { // as the kernel does when its process dies
		t.Fatal(err)
	}
	second := lead(dir)
	if second == nil {
		t.Fatal("nobody takes over")
	}
	_ = second.Close()
}

// TestFollow: the one that leads looks after the sessions that there are,
// whether complete or not.
func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	a, b := open(t, dir), open(t, dir)
	must.Do(t, os.Mkdir(filepath.Join(dir, unfinished+"c"), 0o700))
	must.Do(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	l := &leader{loop: pace.New(), members: map[string]*pace.Container{}}
	want := func(sessions ...*Session) {
		t.Helper()
		for _, s := range sessions {
			if l.members[s.dir] == nil {
				t.Errorf("%s isn't looked after", s.dir)
			}
		}
		if len(l.members) != len(sessions) {
			t.Errorf("%v are looked after, want %d", l.members, len(sessions))
		}
	}
	l.follow(dir)
	want(a, b)
	must.Do(t, a.Close())
	c := open(t, dir)
	l.follow(dir)
	want(b, c)
}
