// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// SharedMemory is where CUDA's processes have the files that a server shares with its
// clients: each side looks there and nowhere else.
const SharedMemory = "/dev/shm"

// shared is the folder's tmpfs. It is mounted here, where the runtime finds it, and over
// SharedMemory in the containers and in the daemon's own mount namespace; never over the
// node's.
func shared(dir string) string { return filepath.Join(dir, "shm") }

// memoryPercent of the node's memory is what the shared files of a device may take: all
// devices together no more than half, which is Linux' own bound of one tmpfs.
func memoryPercent(devices int) int { return max(1, 50/max(1, devices)) }

// Mount mounts what the folder's daemon and its clients share, unless it is there.
func (p *Program) Mount(dir string, percent int) error {
	at := shared(dir)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if _, is, err := tmpfsAt(at); is || err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("vernier-mps", at, "tmpfs", flags, "mode=1777,size="+strconv.Itoa(percent)+"%"); err != nil {
		return fmt.Errorf("mounting a tmpfs on %s: %w", at, err)
	}
	return nil
}

// Unmount is the end of it, however often it was mounted. Containers that still have it
// keep it until they end.
func (p *Program) Unmount(dir string) error {
	at := shared(dir)
	for {
		switch _, is, err := tmpfsAt(at); {
		case errors.Is(err, fs.ErrNotExist) || err == nil && !is:
			return nil
		case err != nil:
			return err
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s: %w", at, err)
		}
	}
}

// Shares reports whether a process has the folder's tmpfs as its SharedMemory.
func (p *Program) Shares(dir string, pid int) (bool, error) {
	here, is, err := tmpfsAt(shared(dir))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if !is || err != nil {
		return false, err
	}
	var there unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/root%s", pid, SharedMemory), &there); err != nil {
		return false, fmt.Errorf("%s of process %d: %w", SharedMemory, pid, err)
	}
	return there.Dev == here, nil
}

// tmpfsAt tells which tmpfs is mounted on a folder.
func tmpfsAt(at string) (device uint64, is bool, err error) {
	var own, above unix.Stat_t
	var system unix.Statfs_t
	err = errors.Join(unix.Lstat(at, &own), unix.Lstat(filepath.Dir(at), &above), unix.Statfs(at, &system))
	if err != nil {
		return 0, false, &fs.PathError{Op: "stat", Path: at, Err: err}
	}
	return own.Dev, own.Dev != above.Dev && system.Type == unix.TMPFS_MAGIC, nil
}

// apart calls a function on a thread with a mount namespace of its own, which whoever is
// started there keeps. What is unmounted on the node is unmounted there, too: a daemon
// must not hold other pods' volumes. Nothing that is mounted there is seen elsewhere.
func apart(call func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends, and what it has is shown as the process's: it is
			// kept here while another does it.
			defer runtime.UnlockOSThread()
			done <- apart(call)
			return
		}
		// Never unlocked: the thread ends with the goroutine.
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		}
		if err != nil {
			done <- fmt.Errorf("a mount namespace for the MPS daemon: %w", err)
			return
		}
		done <- call()
	}()
	return <-done
}

// arrange gives the calling thread's namespace what the folder's daemon needs: the tmpfs
// in place of the node's SharedMemory, and, where it has another root, which may be mounted
// read-only, the folder itself.
func (p *Program) arrange(dir string) error {
	binds := [][2]string{{shared(dir), filepath.Join(p.Root, SharedMemory)}}
	if p.Root != "/" {
		binds = append(binds, [2]string{dir, filepath.Join(p.Root, dir)})
	}
	for _, bind := range binds {
		if err := unix.Mount(bind[0], bind[1], "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding %s to %s for the MPS daemon: %w", bind[0], bind[1], err)
		}
	}
	return nil
}
