// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/nri-plugin/hostfile"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// files are the limiter's files on the node:
//
//	dir/lib/libvgpu.so                    the library, one for all containers
//	dir/lib/ld.so.preload                 names it, one for all containers
//	dir/<pod UID>/<container>/limits      read-only in the container
//	dir/<pod UID>/<container>/counters    shared with its processes
//
// All are replaced by rename, never changed in place: a running container keeps
// the file that it was started with.
type files struct{ dir string }

// libFolder is no pod's UID.
const libFolder = "lib"

func (f files) library() string          { return filepath.Join(f.dir, libFolder, "libvgpu.so") }
func (f files) preload() string          { return filepath.Join(f.dir, libFolder, "ld.so.preload") }
func (f files) pod(uid types.UID) string { return filepath.Join(f.dir, string(uid)) }
func (f files) limits(c Container) string {
	return filepath.Join(f.pod(c.Pod), c.Name, "limits")
}
func (f files) counters(c Container) string {
	return filepath.Join(f.pod(c.Pod), c.Name, "counters")
}

// install copies the library to where the runtime can mount it from.
func (f files) install(library string) error {
	if err := hostfile.Install(library, f.library()); err != nil {
		return fmt.Errorf("the limiter's library: %w; set --limiter-library and --state-dir", err)
	}
	if err := hostfile.Write(f.preload(), strings.NewReader(libraryPath+"\n"), 0o644); err != nil {
		return fmt.Errorf("the limiter's preload file: %w", err)
	}
	return nil
}

// prepare writes the limits and returns the file that they are in.
func (f files) prepare(c Container) (os.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(f.limits(c)), 0o755); err != nil {
		return nil, err
	}
	if err := layout.WriteFile(f.limits(c), limits(c)); err != nil {
		return nil, err
	}
	return os.Lstat(f.limits(c))
}

// same tells whether the file at path is that one, as it was.
func (f files) same(path string, as os.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && as != nil && os.SameFile(now, as) && now.ModTime().Equal(as.ModTime()) && now.Size() == as.Size()
}

func (f files) has(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
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
