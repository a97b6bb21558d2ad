// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"path/filepath"
	"testing"
)

// New builds what is missing and creates a machine for one test, in the test's
// own folder. The process's environment points to it (SIMGPU_STATE, and all
// devices visible), so that libraries loaded into the test use it too.
func New(t testing.TB, cfg Config) *Sim {
	t.Helper()
	out := ""
	if bin := os.Getenv("VERNIER_BIN"); bin != "" {
		out = filepath.Join(bin, "simgpu")
	}
	bin, err := Build(out)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Create(bin, filepath.Join(t.TempDir(), "state"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SIMGPU_STATE", s.State)
	t.Setenv("SIMGPU_ALL_DEVICES", "1")
	return s
}
