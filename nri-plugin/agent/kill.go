// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kill ends the first process of a container, and with it the container. The
// process is held by a descriptor before it is compared with the container, so
// that a number which is given to another process harms nobody. It
// needs the host's PID namespace.
func kill(pid uint32, container string) error {
	if pid == 0 || container == "" {
		return fmt.Errorf("the runtime names no process")
	}
	held, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(held)
	cgroups, err := os.ReadFile(filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(cgroups), container) {
		return fmt.Errorf("process %d is not of container %s", pid, container)
	}
	return unix.PidfdSendSignal(held, unix.SIGKILL, nil, 0)
}
