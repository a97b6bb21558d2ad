// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// state gives a container with a root of its own on standard input, as the runtime
// does, and returns that root.
func state(t *testing.T) (root string) {
	t.Helper()
	bundle := t.TempDir()
	root = filepath.Join(bundle, "rootfs")
	must.Do(t, os.Mkdir(root, 0o755))
	write := func(name string, of any) *os.File {
		text, err := json.Marshal(of)
		if err == nil {
			err = os.WriteFile(filepath.Join(bundle, name), text, 0o600)
		}
		must.Do(t, err)
		f := must.Get(os.Open(filepath.Join(bundle, name)))(t)
		t.Cleanup(func() { f.Close() })
		return f
	}
	write("config.json", map[string]any{"ociVersion": "1.2.0", "root": map[string]any{"path": "rootfs"}})
	// More than a pipe holds: annotations are part of the state.
	f := write("state.json", map[string]any{
		"ociVersion": "1.2.0", "id": "c", "status": "creating", "bundle": bundle,
		"annotations": map[string]string{"long": strings.Repeat("x", 200_000)},
	})
	stdin := os.Stdin
	t.Cleanup(func() { os.Stdin = stdin })
	os.Stdin = f
	return root
}

func linked(root, name string) bool {
	_, err := os.Readlink(filepath.Join(root, name))
	return err == nil
}

// Each hook of the one process has the whole of the container's state.
func TestHooksRunInOneProcess(t *testing.T) {
	root := state(t)
	must.Do(t, run([]string{"create-symlinks", "--link", "a::/lib/one", "--", "create-symlinks", "--link", "b::/lib/two"}))
	for _, name := range []string{"lib/one", "lib/two"} {
		if !linked(root, name) {
			t.Errorf("no %s", name)
		}
	}
}

// A container whose hook fails must not start, and what was to follow does not run.
func TestFailureEndsTheRest(t *testing.T) {
	root := state(t)
	err := run([]string{"create-symlinks", "--link", "no link", "--", "create-symlinks", "--link", "b::/lib/two"})
	if err == nil || !strings.Contains(err.Error(), "create-symlinks") {
		t.Errorf("%v, want the hook that failed", err)
	}
	if linked(root, "lib/two") {
		t.Error("a hook ran after one that failed")
	}
}

// As in NVIDIA's own program: a spec may be newer than the hook.
func TestUnknownHookIsNoFailure(t *testing.T) {
	root := state(t)
	must.Report(t, run([]string{"of-tomorrow", "--x", "--", "create-symlinks", "--link", "b::/lib/two"}))
	if !linked(root, "lib/two") {
		t.Error("the known hook did not run")
	}
}

// The agent tries whether the program runs on the node.
func TestVersionNeedsNoContainer(t *testing.T) {
	must.Report(t, run([]string{"--version"}))
}
