// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/nri-plugin/inventory"
)

// On a machine whose kernel module is not loaded the agent's inventory says that, with
// every driver's NVML.
func TestInventoryWithoutAKernelModule(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		_, lib, err := inventory.Open(inventory.Options{Library: filepath.Join(d.lib(), "libnvidia-ml.so.1")})
		if err == nil {
			lib.Shutdown()
			t.Fatal("it opens")
		}
		if !strings.Contains(err.Error(), "kernel module is not loaded") {
			t.Error(err)
		}
	})
}
