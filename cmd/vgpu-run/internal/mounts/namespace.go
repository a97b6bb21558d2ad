// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Namespace is how to start the process that is to call Enter: in a new mount
// namespace, as
// the same user and group as now. Without the right to make one, it is in a user namespace too.
func Namespace() *syscall.SysProcAttr {
	if mayMount() {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	}
	uid, gid := os.Geteuid(), os.Getegid()
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}, // kept over exec, until Drop
	}
}

// mayMount reports whether the process has CAP_SYS_ADMIN.
func mayMount() bool {
	sets, err := capabilities()
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

var header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

func capabilities() ([2]unix.CapUserData, error) {
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	return sets, err
}

// Drop gives up what Namespace gave to an ordinary user, so that the program that
// the calling thread becomes hasn't got it.
func Drop() error {
	sets, err := capabilities()
	sets[0].Inheritable &^= 1 << unix.CAP_SYS_ADMIN
	if err == nil {
		err = unix.Capset(&header, &sets[0]) // takes it out of the ambient set, too
	}
	if err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

// Explain adds what can be done about an error of the process's start or of Enter.
func Explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: a mount namespace is needed. Run vgpu-run as root, or allow user namespaces to users "+
			"(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), "+
			"or in a container with the capability SYS_ADMIN", err)
	}
	return err
}
