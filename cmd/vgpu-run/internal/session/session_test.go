// SPDX-License-Identifier: Apache-2.0

package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

var limits = layout.Limits{Container: "vgpu-run", Devices: []layout.DeviceLimit{
	{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff", Core: 30, MemoryBytes: 1 << 20},
}}

func open(t *testing.T, dir string) *Session {
	t.Helper()
	s := must.Get(New(dir, limits))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestSweep: a session that has ended without removing its folder is removed by
// the next, one that runs isn't.
func TestSweep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	dead, alive := open(t, dir), open(t, dir)
	if err := dead.lock.Close(); err != nil { // as the kernel does when its process dies
		t.Fatal(err)
	}
	third := open(t, dir)
	if _, err := os.Stat(dead.dir); err == nil {
		t.Error("the dead session's folder is still there")
	}
	for _, s := range []*Session{alive, third} {
		if _, err := layout.ReadFile(s.Files().Limits); err != nil {
			t.Error(err)
		}
		if _, err := layout.ReadUsage(s.Files().Counters); err != nil {
			t.Error(err)
		}
		must.Report(t, s.Close())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v are left", left, err)
	}
}

// TestForeignFolder: a folder that others can write to, or that a link leads to,
// isn't used.
func TestForeignFolder(t *testing.T) {
	root := t.TempDir()
	public, link := filepath.Join(root, "public"), filepath.Join(root, "link")
	must.Do(t, os.Mkdir(public, 0o700))
	must.Do(t, os.Chmod(public, 0o777))
	must.Do(t, os.Symlink(root, link))
	for _, dir := range []string{public, link} {
		if _, err := New(dir, limits); err == nil || !strings.Contains(err.Error(), "--run-dir") {
			t.Errorf("%s: %v, want it refused, with the flag's name", dir, err)
		}
	}
}

// TestDefaultDir: a user's runs find each other whatever their environment says, and nobody
// else's.
func TestDefaultDir(t *testing.T) {
	before := DefaultDir(1000)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	if after := DefaultDir(1000); after != before {
		t.Errorf("%s, and %s with XDG_RUNTIME_DIR", before, after)
	}
	if DefaultDir(0) == before || DefaultDir(1001) == before {
		t.Error("two users have one folder")
	}
}
