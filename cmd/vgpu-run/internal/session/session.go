// SPDX-License-Identifier: Apache-2.0

// Package session owns the folder in which the vgpu-run of one user find each
// other. Each that runs has a subfolder with the files of its command,
// as the node agent keeps them for a container. The subfolder
// is named after the PID of its vgpu-run.
//
//	DIR/<name>/limits     what its command may use
//	DIR/<name>/counters   what it uses
//	DIR/<name>/pace       what is said to it about the others, and the limits in force
//	DIR/<name>/others     for how long processes that no limit holds worked beside it
//	DIR/<name>/resize     locked by the one that changes its limits
//	DIR/lead              locked by the one that says it
//
// A subfolder is in use while its maker holds the lock on it. The kernel drops
// the lock with the process, and the next session removes the folder. Nobody
// ever waits for a lock.
package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/cmd/vgpu-run/internal/mounts"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	limitsName, countersName, paceName, othersName, resizeName = "limits", "counters", "pace", "others", "resize"

	// unfinished begins the name of a folder that isn't locked yet.
	unfinished = ".new-"
)

// Session is the folder of one command.
type Session struct {
	dir  string
	lock *os.File
}

// DefaultDir is the user's folder for sessions. It is the same whatever the environment says and
// whether the user is logged in. A run from a desktop and one from cron find each other.
func DefaultDir(uid int) string {
	if uid == 0 {
		return "/run/vgpu-run"
	}
	return fmt.Sprintf("/tmp/vgpu-run-%d", uid)
}

// New makes a session in dir, and dir if it must, for a command with
// these limits. It removes the folders of sessions that have ended.
func New(dir string, limits layout.Limits) (*Session, error) {
	s, err := create(dir, limits)
	if err != nil {
		return nil, fmt.Errorf("the folder of running commands: %w; set --run-dir to a folder of your own", err)
	}
	return s, nil
}

func create(dir string, limits layout.Limits) (*Session, error) {
	if err := own(dir); err != nil {
		return nil, err
	}
	if err := sweep(dir); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(dir, fmt.Sprintf("%s%d-*", unfinished, os.Getpid()))
	if err != nil {
		return nil, err
	}
	s := &Session{dir: path}
	files := s.Files()
	if s.lock, err = lock(path); err == nil {
		err = errors.Join(
			os.Mkdir(files.Scratch, 0o700),
			layout.WriteFile(files.Limits, limits),
			layout.CreateCounters(files.Counters, len(limits.Devices)),
			layout.CreatePace(files.Pace, len(limits.Devices)),
		)
	}
	if err == nil {
		final := filepath.Join(dir, strings.TrimPrefix(filepath.Base(path), unfinished))
		if err = os.Rename(path, final); err == nil {
			s.dir = final
		}
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// own makes dir, for this user alone, or finds that it is.
func own(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that only this user can write to", dir)
	}
	return nil
}

// lock locks a file or folder for as long as the file is open, or says that it can't.
func lock(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweep removes the folders of sessions that have ended without doing so.
func sweep(dir string) error {
	paths, err := sessions(dir)
	for _, path := range paths {
		if f, err := lock(path); err == nil {
			_ = os.RemoveAll(path)
			_ = f.Close()
		}
	}
	return err
}

// sessions are the paths of all complete sessions.
func sessions(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var paths []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), unfinished) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// Files are the session's, without the library.
func (s *Session) Files() mounts.Files {
	return mounts.Files{
		Limits: filepath.Join(s.dir, limitsName), Counters: filepath.Join(s.dir, countersName),
		Pace: filepath.Join(s.dir, paceName), Scratch: filepath.Join(s.dir, "scratch"),
	}
}

// Close removes the session's folder. Processes that its command has left behind
// keep their limits.
func (s *Session) Close() error {
	err := os.RemoveAll(s.dir)
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}
