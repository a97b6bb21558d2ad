// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// goneWithin bounds for how long a killed process is watched. One that the kernel keeps for longer waits for
// a device.
const goneWithin = 10 * time.Second

// kill ends the first process of a container, and with it the container. The
// process is held by a descriptor before it is compared with the container, so
// that a number which is given to another process harms nobody. It
// needs the host's PID namespace.
func kill(pid uint32, container string) error { return killThen(pid, container, nil) }

// killThen does that, and calls gone, where there is one, once the process has ended. The others of its PID
// namespace have ended then, too.
func killThen(pid uint32, container string, gone func()) error {
	if pid == 0 || container == "" {
		return fmt.Errorf("the runtime names no process")
	}
	held, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer func() {
		if held >= 0 {
			unix.Close(held)
		}
	}()
	cgroups, err := os.ReadFile(filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(cgroups), container) {
		return fmt.Errorf("process %d is not of container %s", pid, container)
	}
	err = unix.PidfdSendSignal(held, unix.SIGKILL, nil, 0)
	if err == nil && gone != nil {
		go func(held int) {
			defer unix.Close(held)
			until := time.Now().Add(goneWithin)
			for {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(held), Events: unix.POLLIN}}, int(time.Until(until).Milliseconds())+1)
				if n > 0 {
					gone()
				}
				if err != unix.EINTR || time.Now().After(until) {
					return
				}
			}
		}(held)
		held = -1 // the goroutine's
	}
	return err
}
