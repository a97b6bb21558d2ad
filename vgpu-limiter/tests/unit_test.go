// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os/exec"
	"path/filepath"
	"testing"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// TestUnits runs the parts that need no driver: plain, and under each sanitizer.
func TestUnits(t *testing.T) {
	for _, sanitizer := range []string{"", "address", "undefined", "thread"} {
		t.Run("sanitizer="+sanitizer, func(t *testing.T) {
			dir := t.TempDir()
			run(t, "make", "--no-print-directory", "-C", "..", "OUT="+dir, "SANITIZE="+sanitizer, "units")
			for _, unit := range []string{"table_test", "charge_test", "limits_test"} {
				counters, limits := filepath.Join(dir, "counters"), filepath.Join(dir, "limits")
				if err := layout.CreateCounters(counters, 1); err != nil {
					t.Fatal(err)
				}
				device := layout.DeviceLimit{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff", Core: 30, MemoryBytes: 5}
				if err := layout.WriteFile(limits, layout.Limits{Container: "a/b", Devices: []layout.DeviceLimit{device}}); err != nil {
					t.Fatal(err)
				}
				if out, err := exec.Command(filepath.Join(dir, unit), counters, limits).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", unit, err, out)
				}
			}
		})
	}
}
