// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// What the machine lacks is named, each thing with its remedy, before anything is
// installed, built or started.
func TestMissing(t *testing.T) {
	bin, started := t.TempDir(), filepath.Join(t.TempDir(), "started")
	for _, tool := range []string{"awk", "bash", "dirname", "id", "sort", "uname"} {
		path := must.Get(exec.LookPath(tool))(t)
		must.Do(t, os.Symlink(path, filepath.Join(bin, tool)))
	}
	fake := func(name, script string) {
		t.Helper()
		must.Do(t, os.WriteFile(filepath.Join(bin, name), []byte("#!"+filepath.Join(bin, "bash")+"\n"+script+"\n"), 0o755))
	}
	fake("go", `[ "$1" = env ] && echo go1.21.13 || echo go "$@" >>`+started)
	fake("apt-get", "echo apt-get >>"+started)
	fake("make", "echo make >>"+started)
	run := func(remedies ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "bash"), "run.sh")
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("it went on: %s", out)
		}
		if strings.Contains(string(out), "\033") {
			t.Errorf("codes for a terminal, and this is none: %q", out)
		}
		for _, remedy := range remedies {
			if !strings.Contains(string(out), remedy) {
				t.Errorf("no word of %q: %s", remedy, out)
			}
		}
		if did, err := os.ReadFile(started); err == nil {
			t.Errorf("started before everything was there: %s", did)
		}
	}
	run("apt-get install gcc", "(this is go1.21.13). remedy: install it from https://go.dev/dl")
	fake("gcc", "")
	run("missing: Go 1.")
	must.Do(t, os.Remove(filepath.Join(bin, "go")))
	run("missing: go. remedy: install Go 1.")
}
