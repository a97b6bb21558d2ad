// SPDX-License-Identifier: Apache-2.0

package nritest

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// UnmountAfter unmounts what is mounted below a folder when the test ends, before the
// folder is removed: the limiter's counters of containers that have not ended.
func UnmountAfter(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() {
		all, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(all)) {
			if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
				if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
					t.Errorf("unmounting %s: %v", at, err)
				}
			}
		}
	})
}
