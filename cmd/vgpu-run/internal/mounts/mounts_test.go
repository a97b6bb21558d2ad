// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// TestGraft puts a file where folders are missing, behind a link, with neighbours
// of every kind: inside of the namespace it is there and so are they; outside of
// it nothing has changed.
func TestGraft(t *testing.T) {
	if dir := os.Getenv("GRAFT_IN"); dir != "" {
		graftIn(t, dir)
		return
	}
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(real, "sub"), 0o755),
		os.Mkdir(filepath.Join(dir, "scratch"), 0o755),
		os.WriteFile(filepath.Join(real, "file"), []byte("file"), 0o600),
		os.WriteFile(filepath.Join(real, "sub", "file"), []byte("deep"), 0o600),
		os.Symlink("file", filepath.Join(real, "link")),
		os.Symlink("real", filepath.Join(dir, "alias")),
	} {
		must.Do(t, err)
	}
	inside := exec.Command(os.Args[0], "-test.run=^TestGraft$")
	inside.Env = append(os.Environ(), "GRAFT_IN="+dir)
	inside.SysProcAttr = Namespace()
	if out, err := inside.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	entries, err := os.ReadDir(real)
	if err != nil || len(entries) != 3 {
		t.Errorf("outside there are %v, %v; want file, link and sub", entries, err)
	}
	if _, err := os.Stat(filepath.Join(real, "sub", "new")); err != nil {
		t.Errorf("what was written into a folder that isn't ours: %v", err)
	}
}

func graftIn(t *testing.T, dir string) {
	must.Do(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	real := filepath.Join(dir, "real")
	must.Do(t, graft(filepath.Join(dir, "alias", "a", "b", "c"), filepath.Join(dir, "scratch"), func(path string) error {
		return os.WriteFile(path, []byte("grafted"), 0o600)
	}))
	for name, want := range map[string]string{"file": "file", "link": "file", "sub/file": "deep", "a/b/c": "grafted"} {
		if got, err := os.ReadFile(filepath.Join(real, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
		}
	}
	if link, err := os.Readlink(filepath.Join(real, "link")); err != nil || link != "file" {
		t.Errorf("the link is %q, %v", link, err)
	}
	if err := os.WriteFile(filepath.Join(real, "a", "b", "c"), nil, 0o600); err == nil {
		t.Error("the grafted file can be written")
	}
	if err := os.Remove(filepath.Join(real, "a", "b", "c")); err == nil {
		t.Error("the grafted file can be removed")
	}
	if err := os.WriteFile(filepath.Join(real, "sub", "new"), nil, 0o600); err != nil {
		t.Errorf("a folder of the machine's is read-only: %v", err)
	}
}
