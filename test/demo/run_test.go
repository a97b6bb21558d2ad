// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What the machine lacks is named, each thing with its remedy, before anything is
// installed, built or started.
func TestMissing(t *testing.T) {
	bin, started := t.TempDir(), filepath.Join(t.TempDir(), "started")
	for _, tool := range []string{"awk", "bash", "dirname", "id", "sort", "uname"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	fake := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!"+filepath.Join(bin, "bash")+"\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
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
	if err := os.Remove(filepath.Join(bin, "go")); err != nil {
		t.Fatal(err)
	}
	run("missing: go. remedy: install Go 1.")
}
