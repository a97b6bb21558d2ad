// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package cgroup2

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/cluster/tools"
	"vernier.dev/vernier/test/must"
)

// build builds a program or a package's tests, without C and without libraries: they run
// there as they are.
func build(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
}

func boot(t *testing.T, memoryMiB int) *Machine {
	t.Helper()
	unpack := exec.Command("./unpack")
	unpack.Stderr = os.Stderr
	root, err := unpack.Output()
	if err != nil {
		t.Fatal("unpacking the kernel and QEMU: ", err)
	}
	m := &Machine{Root: strings.TrimSpace(string(root)), Init: filepath.Join(t.TempDir(), "init"), MemoryMiB: memoryMiB}
	build(t, "build", "-o", m.Init, "./init")
	return m
}

// The tests of what sets limits and of what reads them, on a machine that has no other
// control groups; "inside" has those that need one.
func TestOnVersion2(t *testing.T) {
	m, bin := boot(t, 1024), t.TempDir()
	dirs := must.Get(tools.Ensure(t.Context(), os.Stderr, tools.Runc, tools.Containerd, tools.Own))(t)
	script := "set -e\n"
	for _, pkg := range []string{"nri-plugin/cgroup", "nri-plugin/batch", "nri-plugin/hooks", "nri-plugin/numa", "nri-plugin/mode/driverlimit", "test/cgroup2/inside"} {
		program := filepath.Join(bin, strings.ReplaceAll(pkg, "/", "-"))
		folder := must.Get(filepath.Abs("../../" + pkg))(t)
		build(t, "test", "-c", "-tags", "cgroup2", "-o", program, folder)
		script += "echo; echo " + pkg + "\ncd " + folder + "\n" + program + " -test.v\n"
	}
	c := Command{Argv: []string{"/bin/sh", "-c", script}, Dir: "/", Env: append(os.Environ(),
		"VERNIER_RUNC="+filepath.Join(dirs[0], "runc"), "VERNIER_CONTAINERD="+dirs[1], "VERNIER_PAUSE="+filepath.Join(dirs[2], "pause"))}
	must.Do(t, m.Run(t.Context(), c, t.Output()))
}
