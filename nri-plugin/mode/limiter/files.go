// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/preload"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// files are the limiter's files on the node:
//
//	dir/lib/libvgpu.so                 the library that this agent brought
//	dir/<pod UID>/<container>/run-*/   one for each run of the container
//
// A run's folder is made ahead, and is layout.Folder in the container: the library
// (a hard link), the limits, the counters (a mount, counters.go) and the pace. The runtime's list of mounts tells
// whose it is. Nothing in it is ever replaced, nor removed before the run has
// ended: the container sees the folder itself, and the kernel takes its mount of
// the counters away with the name that they are mounted on. So a run keeps what it
// was started with, whatever the ledger and the agent come to be.
type files struct{ dir string }

const (
	libFolder = "lib" // no pod's UID
	runPrefix = "run-"
)

func (f files) library() string {
	return filepath.Join(f.dir, libFolder, filepath.Base(layout.LibraryPath))
}
func (f files) pod(uid types.UID) string { return filepath.Join(f.dir, string(uid)) }
func (f files) container(c mode.Container) string {
	return filepath.Join(f.pod(c.Pod), c.Name)
}

// isRun reports whether a path is that of a run of the container.
func (f files) isRun(c mode.Container, dir folder) bool {
	parent, name := filepath.Split(string(dir))
	return filepath.Clean(parent) == f.container(c) && strings.HasPrefix(name, runPrefix)
}

// owner is the pod of a run's folder.
func (f files) owner(dir folder) types.UID {
	return types.UID(filepath.Base(filepath.Dir(filepath.Dir(string(dir)))))
}

// folder is what one run of a container sees as layout.Folder.
type folder string

func (d folder) library() string  { return string(d) + "/" + filepath.Base(layout.LibraryPath) }
func (d folder) limits() string   { return string(d) + "/" + filepath.Base(layout.LimitsPath) }
func (d folder) counters() string { return string(d) + "/" + filepath.Base(layout.CountersPath) }
func (d folder) preload() string  { return string(d) + "/" + filepath.Base(preload.Path) }
func (d folder) pace() string     { return string(d) + "/" + filepath.Base(layout.PacePath) }

// install copies the library to where the runtime can mount it from.
func (f files) install(library string) error {
	if err := atomicfile.Install(library, f.library()); err != nil {
		return fmt.Errorf("the limiter's library: %w; set --limiter-library and --state-dir", err)
	}
	return nil
}

// make makes a folder for the container's next run.
func (f files) make(c mode.Container) (folder, error) {
	if err := os.MkdirAll(f.container(c), 0o755); err != nil {
		return "", err
	}
	path, err := os.MkdirTemp(f.container(c), runPrefix+"*")
	if err != nil {
		return "", err
	}
	dir := folder(path)
	if err := f.fill(dir, c); err != nil {
		return "", errors.Join(err, dir.remove())
	}
	return dir, nil
}

func (f files) fill(dir folder, c mode.Container) error {
	// Where it cannot be linked (another file system, too many links), a copy.
	if os.Link(f.library(), dir.library()) != nil {
		if err := atomicfile.Install(f.library(), dir.library()); err != nil {
			return err
		}
	}
	if err := dir.writePreload(nil); err != nil {
		return err
	}
	if err := layout.WriteFile(dir.limits(), limits(c)); err != nil {
		return err
	}
	if err := dir.writeShare(share{Since: time.Now().UTC(), Devices: shareOf(limits(c))}); err != nil {
		return err
	}
	if err := dir.mountCounters(len(c.Grants)); err != nil {
		return err
	}
	if err := layout.CreatePace(dir.pace(), len(c.Grants)); err != nil {
		return err
	}
	// The container's users see the folder itself.
	return os.Chmod(string(dir), 0o755)
}

// whole reports whether the folder's library is in its place. Without it programs
// would run unlimited and nobody would notice; without the limits their CUDA calls
// fail, without the counters the runtime's mount does.
func (d folder) whole() bool {
	_, err := os.Lstat(d.library())
	return err == nil
}

// sweep removes the folders of runs that are not to be kept.
func (f files) sweep(keep map[folder]bool) error {
	pods, err := f.pods()
	for _, pod := range pods {
		all, failed := f.runs(pod)
		err = errors.Join(err, failed)
		for _, dir := range all {
			if !keep[dir] {
				err = errors.Join(err, dir.remove())
			}
		}
	}
	return err
}

// release removes all that a pod has.
func (f files) release(pod types.UID) error {
	all, err := f.runs(pod)
	for _, dir := range all {
		err = errors.Join(err, dir.remove())
	}
	if err != nil { // nothing is removed through a mount
		return err
	}
	return os.RemoveAll(f.pod(pod))
}

// runs are the folders of a pod's runs.
func (f files) runs(pod types.UID) ([]folder, error) {
	all, err := filepath.Glob(filepath.Join(f.pod(pod), "*", runPrefix+"*"))
	dirs := make([]folder, len(all))
	for i, path := range all {
		dirs[i] = folder(path)
	}
	return dirs, err
}

// podUID is a UID as the API server makes them.
var podUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// pods are those that have a folder. What has another name is somebody else's: whoever
// sets the state directory may have put it where other things are.
func (f files) pods() ([]types.UID, error) {
	entries, err := os.ReadDir(f.dir)
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() && podUID.MatchString(e.Name()) {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, err
}

// preload has the container load what its image preloads, after our library. Where
// that cannot be had the container does not start.
func (l *Limiter) preload(c mode.Container, pid uint32) error {
	if l.ImagePreload == nil {
		return nil
	}
	own := l.ImagePreload(pid)
	if len(own) == 0 {
		return nil
	}
	dir, err := l.folder(c)
	if err == nil {
		err = dir.writePreload(own)
	}
	if err != nil {
		return fmt.Errorf("adding the image's %s to the limiter's: %w; check the space on the node's state directory, or remove the file from the image", preload.Path, err)
	}
	return nil
}

// writePreload writes the file in its place: it is mounted already, and nothing of
// the container runs yet that could see it half written. Ours comes first: what it
// stands in front of it must find before any other does.
func (d folder) writePreload(image []byte) error {
	content := append([]byte(layout.LibraryPath+"\n"), image...)
	if err := os.WriteFile(d.preload(), content, 0o644); err != nil {
		return err
	}
	// Whatever the umask.
	return os.Chmod(d.preload(), 0o644)
}
