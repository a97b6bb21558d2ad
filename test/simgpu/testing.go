// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/must"
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
	bin := must.Get(Build(out))(t)
	s := must.Get(Create(bin, filepath.Join(t.TempDir(), "state"), cfg))(t)
	t.Setenv("SIMGPU_STATE", s.State)
	t.Setenv("SIMGPU_ALL_DEVICES", "1")
	return s
}
