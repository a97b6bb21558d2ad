// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/nri-plugin/agent"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
)

func TestParse(t *testing.T) {
	none := func(string) string { return "" }
	for name, c := range map[string]struct {
		args []string
		env  func(string) string
		says string
	}{
		"no name":        {env: none, says: "--node-name"},
		"no such share":  {args: []string{"--node-name=a", "--opportunistic-cpu=0"}, env: none, says: "set 1 to 100"},
		"no such time":   {args: []string{"--node-name=a", "--idle-after=-1m"}, env: none, says: "or 0 for never"},
		"loose argument": {args: []string{"--node-name=a", "b"}, env: none, says: `"b"`},
		"unknown flag":   {args: []string{"--what"}, env: none, says: "what"},
	} {
		if _, err := parse(c.args, c.env); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	o := must.Get(parse([]string{"--driver-root=/run/nvidia/driver"}, func(name string) string {
		return map[string]string{"NODE_NAME": "gpu-1"}[name]
	}))(t)
	if o.Node != "gpu-1" || o.hostDriverRoot != "/run/nvidia/driver" || o.StateDir != "/var/lib/vernier" {
		t.Errorf("%+v", o)
	}
	if o, err := parse([]string{"--node-name=a", "--driver-root=/host", "--host-driver-root=/"}, none); err != nil || o.hostDriverRoot != "/" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestInstallHook(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "hook")
	must.Do(t, os.WriteFile(program, []byte("#!/bin/sh\ntest \"$*\" = --version\n"), 0o600))
	o := &options{cdiHook: program, Options: agent.Options{StateDir: filepath.Join(dir, "state")}, driverRoot: "/", hostDriverRoot: "/"}
	path := must.Get(o.installHook())(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o755 || !strings.HasPrefix(path, o.StateDir) {
		t.Errorf("%s: %v, %v", path, info, err)
	}
	// A C library that is too old says so through the loader.
	old := filepath.Join(dir, "old")
	must.Do(t, os.WriteFile(old, []byte("#!/bin/sh\necho \"version 'GLIBC_2.34' not found\"\nexit 1\n"), 0o600))
	o.cdiHook = old
	_, err = o.installHook()
	for _, part := range []string{"GLIBC_2.34' not found", "update the node", "--cdi-hook"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("too old a node: %v, want %q", err, part)
		}
	}
	// The node's root cannot be seen.
	o.driverRoot, o.hostDriverRoot = "/run/nvidia/driver", "/run/nvidia/driver"
	if _, err := o.installHook(); err != nil {
		t.Errorf("driver container: %v", err)
	}
	o.cdiHook = ""
	if path, err := o.installHook(); path != "" || err != nil {
		t.Errorf("no hook: %q, %v", path, err)
	}
	o.cdiHook = program + "-missing"
	if _, err := o.installHook(); err == nil || !strings.Contains(err.Error(), "--cdi-hook") {
		t.Errorf("missing: %v", err)
	}
}

// A library that could not be opened and is another file at the next attempt is not
// opened in this process: the loader would give it the first one.
func TestAnotherLibrary(t *testing.T) {
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	g := &gpus{}
	write := func(text string) {
		t.Helper()
		must.Do(t, os.WriteFile(library+".new", []byte(text), 0o600))
		must.Do(t, os.Rename(library+".new", library))
	}
	for _, step := range []struct {
		what   string
		do     func()
		wanted error
	}{
		{"none yet", func() {}, nil},
		{"installed", func() { write("one") }, nil},
		{"the same", func() {}, nil},
		{"replaced", func() { write("two") }, device.ErrReplaced},
	} {
		step.do()
		if err := g.another(library); !errors.Is(err, step.wanted) {
			t.Errorf("%s: %v, want %v", step.what, err, step.wanted)
		}
	}
}
