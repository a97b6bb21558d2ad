// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/nri-plugin/hostfile"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// files are the limiter's files on the node:
//
//	dir/lib/libvgpu.so               the library that this agent brought
//	dir/lib/ld.so.preload            names it, one for all containers
//	dir/<pod UID>/<container>/next/  made ahead for the container's next run
//	dir/<pod UID>/<container>/<id>/  given to the run with that runtime id
//
// The last two hold what is layout.Folder in the container: the library (a hard
// link), the limits and the counters. Nothing is replaced or removed in a folder
// that a run has: it sees the folder itself, and the kernel takes its mount of the
// counters away with the name that they are mounted on. So a run keeps what it was
// started with, whatever the ledger and the agent come to be.
type files struct{ dir string }

// libFolder is no pod's UID.
const libFolder = "lib"

func (f files) library() string {
	return filepath.Join(f.dir, libFolder, filepath.Base(layout.LibraryPath))
}
func (f files) preload() string          { return filepath.Join(f.dir, libFolder, filepath.Base(preloadPath)) }
func (f files) pod(uid types.UID) string { return filepath.Join(f.dir, string(uid)) }

// next is no runtime's id.
func (f files) next(c Container) folder { return folder(filepath.Join(f.pod(c.Pod), c.Name, "next")) }
func (f files) run(c Container) folder  { return folder(filepath.Join(f.pod(c.Pod), c.Name, c.ID)) }

// folder is what one run of a container sees as layout.Folder.
type folder string

func (d folder) library() string { return filepath.Join(string(d), filepath.Base(layout.LibraryPath)) }
func (d folder) limits() string  { return filepath.Join(string(d), filepath.Base(layout.LimitsPath)) }
func (d folder) counters() string {
	return filepath.Join(string(d), filepath.Base(layout.CountersPath))
}

// install copies the library to where the runtime can mount it from.
func (f files) install(library string) error {
	if err := hostfile.Install(library, f.library()); err != nil {
		return fmt.Errorf("the limiter's library: %w; set --limiter-library and --state-dir", err)
	}
	if err := hostfile.Write(f.preload(), strings.NewReader(layout.LibraryPath+"\n"), 0o644); err != nil {
		return fmt.Errorf("the limiter's preload file: %w", err)
	}
	return nil
}

// made is a folder for a next run, and its files as they were then.
type made struct {
	grants          []ledger.Grant
	library, limits os.FileInfo
}

// make makes the folder for the container's next run, in place of any other.
func (f files) make(c Container) (made, error) {
	dir := f.next(c)
	if err := os.RemoveAll(string(dir)); err != nil {
		return made{}, err
	}
	if err := os.MkdirAll(string(dir), 0o755); err != nil {
		return made{}, err
	}
	// Whatever the umask: the container's users see the folder itself.
	if err := os.Chmod(string(dir), 0o755); err != nil {
		return made{}, err
	}
	// Another file system, or more links than this one allows.
	if os.Link(f.library(), dir.library()) != nil {
		if err := hostfile.Install(f.library(), dir.library()); err != nil {
			return made{}, err
		}
	}
	if err := layout.WriteFile(dir.limits(), limits(c)); err != nil {
		return made{}, err
	}
	if err := layout.CreateCounters(dir.counters(), len(c.Grants)); err != nil {
		return made{}, err
	}
	library, err := os.Lstat(dir.library())
	if err != nil {
		return made{}, err
	}
	limits, err := os.Lstat(dir.limits())
	return made{grants: c.Grants, library: library, limits: limits}, err
}

// intact tells whether the folder's read-only files are the ones that were made.
// A library that is missing would be missed by nobody; missing counters fail the
// container's creation by themselves.
func (f files) intact(c Container, as made) bool {
	dir := f.next(c)
	return same(dir.library(), as.library) && same(dir.limits(), as.limits)
}

// take gives the folder that was made ahead to the container's run.
func (f files) take(c Container) (folder, error) {
	run := f.run(c)
	err := os.Rename(string(f.next(c)), string(run))
	if errors.Is(err, fs.ErrExist) {
		// A creation of the same id that was cut short.
		if err = os.RemoveAll(string(run)); err == nil {
			err = os.Rename(string(f.next(c)), string(run))
		}
	}
	return run, err
}

func same(path string, as os.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && as != nil && os.SameFile(now, as) && now.ModTime().Equal(as.ModTime()) && now.Size() == as.Size()
}

func (f files) pods() ([]types.UID, error) {
	entries, err := os.ReadDir(f.dir)
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() && e.Name() != libFolder {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, err
}
