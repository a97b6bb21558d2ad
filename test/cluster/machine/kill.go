// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// KillGroups kills every process in the named groups, waits until they are gone
// and removes the groups. A process cannot leave a group by forking, so nothing
// that a cluster started survives this, however it was started.
func (h Hierarchies) KillGroups(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := h.killGroup(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (h Hierarchies) killGroup(ctx context.Context, name string) error {
	for {
		// One write kills the whole subtree at once, forks included; kernels before
		// 5.14 lack the file, and groups of version 1 never had it.
		_ = os.WriteFile(filepath.Join(h.Unified, name, "cgroup.kill"), []byte("1"), 0)
		pids := h.Processes(name)
		for _, pid := range pids {
			if p, err := Lookup(pid); err == nil {
				_ = p.Signal(unix.SIGKILL)
			}
		}
		err := error(nil)
		if len(pids) == 0 {
			// The kernel lets go of a group a moment after its last process.
			if err = h.Remove(name); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("control group %s: processes %v do not end: %w (%v)", name, h.Processes(name), ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
