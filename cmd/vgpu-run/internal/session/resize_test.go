// SPDX-License-Identifier: Apache-2.0

package session

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// TestResize: a session that runs is found by its PID or its folder, one change at a time;
// one that has ended isn't.
func TestResize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	percent := func(core uint32) func(layout.Limits) (layout.DeviceLimit, error) {
		return func(inForce layout.Limits) (layout.DeviceLimit, error) {
			to := inForce.Devices[0]
			to.Core = core
			return to, nil
		}
	}
	wants := func(err error, word string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want it to say %q", err, word)
		}
	}
	wants(Resize(dir, "1", percent(1)), "no vgpu-run runs in "+dir)
	s := open(t, dir)
	pid := strconv.Itoa(os.Getpid())
	if !strings.HasPrefix(filepath.Base(s.dir), pid+"-") {
		t.Errorf("the folder is %s, want it named after process %s", s.dir, pid)
	}
	for i, name := range []string{pid, filepath.Base(s.dir)} {
		must.Report(t, Resize(dir, name, percent(uint32(i+1))))
		files := s.Files()
		if l, err := layout.InForce(files.Limits, files.Pace); err != nil || l.Devices[0].Core != uint32(i+1) {
			t.Errorf("%v; in force is %+v, want %d percent", err, l, i+1)
		}
	}
	wants(Resize(dir, pid+"0", percent(1)), "there are "+filepath.Base(s.dir))
	wants(Resize(dir, pid, func(inForce layout.Limits) (layout.DeviceLimit, error) {
		wants(Resize(dir, pid, percent(3)), "under way")
		return percent(101)(inForce)
	}), "0 to 100")
	must.Do(t, s.lock.Close()) // as the kernel does when its process dies
	wants(Resize(dir, pid, percent(1)), "no vgpu-run runs in")
}
