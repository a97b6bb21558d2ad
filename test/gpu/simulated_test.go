// SPDX-License-Identifier: Apache-2.0

//go:build !gpu

package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// find makes a machine with simulated GPUs.
func find(t *testing.T) machine {
	t.Helper()
	if os.Geteuid() != 0 {
		withoutRoot(t)
	}
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}, {Model: simgpu.H100}}})
	root := filepath.Join(t.TempDir(), "driver")
	must.Do(t, s.DriverRoot(root, false))
	return machine{nvml: s.NVML(), driverRoot: root, devRoot: root, env: []string{"LD_LIBRARY_PATH=" + s.Bin}}
}

func withoutRoot(t *testing.T) {
	t.Helper()
	t.Skip("device nodes and mount namespaces need root")
}
