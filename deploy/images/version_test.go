// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// Every program that `make build` has put into bin says the version of the images.
func TestVersions(t *testing.T) {
	programs := must.Get(os.ReadDir("../../cmd"))(t)
	names := []string{"vernier-cluster"}
	for _, p := range programs {
		names = append(names, p.Name())
	}
	want := stagesOf(t)[0].labels[labelVersion]
	for _, name := range names {
		out, err := exec.CommandContext(t.Context(), filepath.Join("../../bin", name), "--version").CombinedOutput()
		said, found := strings.CutPrefix(strings.TrimSpace(string(out)), strings.Replace(name, "kubectl-", "kubectl ", 1)+" version ")
		said, _, _ = strings.Cut(said, ",") // what NVIDIA's hooks are of
		if err != nil || !found || said != want {
			t.Errorf("%s --version: %q, %v, want version %s", name, out, err, want)
		}
	}
}
