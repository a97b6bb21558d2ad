// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	none := func(string) string { return "" }
	for name, c := range map[string]struct {
		args []string
		env  func(string) string
		says string
	}{
		"no name":        {env: none, says: "--node-name"},
		"loose argument": {args: []string{"--node-name=a", "b"}, env: none, says: `"b"`},
		"unknown flag":   {args: []string{"--what"}, env: none, says: "what"},
	} {
		if _, err := parse(c.args, c.env); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	o, err := parse([]string{"--driver-root=/run/nvidia/driver"}, func(name string) string {
		return map[string]string{"NODE_NAME": "gpu-1"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.node != "gpu-1" || o.hostDriverRoot != "/run/nvidia/driver" || o.stateDir != "/var/lib/vernier" {
		t.Errorf("%+v", o)
	}
	if o, err = parse([]string{"--node-name=a", "--driver-root=/host", "--host-driver-root=/"}, none); err != nil || o.hostDriverRoot != "/" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestInstallHook(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "hook")
	if err := os.WriteFile(program, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &options{cdiHook: program, stateDir: filepath.Join(dir, "state")}
	path, err := o.installHook()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o755 || !strings.HasPrefix(path, o.stateDir) {
		t.Errorf("%s: %v, %v", path, info, err)
	}
	o.cdiHook = ""
	if path, err := o.installHook(); path != "" || err != nil {
		t.Errorf("no hook: %q, %v", path, err)
	}
	o.cdiHook = program + "-missing"
	if _, err := o.installHook(); err == nil || !strings.Contains(err.Error(), "--nvidia-cdi-hook") {
		t.Errorf("missing: %v", err)
	}
}
