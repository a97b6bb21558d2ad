// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-1111-1111-1111-111111111111"
)

func newLimiter(t *testing.T, dir string, driver *driverlimit.Limit) *Limiter {
	t.Helper()
	return bringing(t, "library", dir, driver)
}

// bringing is an agent that comes with that library.
func bringing(t *testing.T, content, dir string, driver *driverlimit.Limit) *Limiter {
	t.Helper()
	library := filepath.Join(t.TempDir(), "libvgpu.so")
	must.Do(t, os.WriteFile(library, []byte(content), 0o600))
	l := must.Get(New(dir, library, driver))(t)
	t.Cleanup(func() { must.Do(t, l.files.release(podID)) }) // with its mounts
	return l
}

// podID is a UID of the API server's making.
const podID = "3f1c9a52-7d0e-4b1b-9a6e-2c5d8e4f7a10"

func container(id string) mode.Container {
	return mode.Container{Pod: podID, Owner: "team/a", Name: "main", ID: id, Grants: []ledger.Grant{
		{UUID: gpu0, Core: 30, Mem: 1024, Mode: v1alpha1.ModeLimiter},
		{UUID: gpu1, Core: 0, Mem: 2048, Mode: v1alpha1.ModeLimiter},
	}}
}

// inject starts a container and tells what it sees as the limiter's folder.
func inject(t *testing.T, l *Limiter, c mode.Container) folder {
	t.Helper()
	adjust := &api.ContainerAdjustment{}
	must.Do(t, l.Inject(c, adjust))
	for _, m := range adjust.GetMounts() {
		if m.GetDestination() == layout.Folder {
			return folder(m.GetSource())
		}
	}
	t.Fatalf("mounts %v", adjust.GetMounts())
	return ""
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	return must.Get(os.Stat(path))(t)
}

// runs are the folders of the container's runs, past and next.
func runs(t *testing.T, dir string) []string {
	t.Helper()
	return must.Get(filepath.Glob(filepath.Join(dir, podID, "main", "*")))(t)
}

// Every run has a folder of its own, with counters that no earlier one can have
// damaged: made ahead for the first and for the successor of one that has ended,
// at once for one that comes before. It goes with the run.
func TestRunsAreApart(t *testing.T) {
	dir := t.TempDir()
	l := newLimiter(t, dir, nil)
	for range 2 {
		must.Do(t, l.Prepare(container("")))
	}
	ahead := runs(t, dir)
	if first := inject(t, l, container("1")); len(ahead) != 1 || string(first) != ahead[0] {
		t.Errorf("%s is not what was made ahead, %v", first, ahead)
	}
	second := inject(t, l, container("2"))
	if both := runs(t, dir); len(both) != 2 {
		t.Errorf("two runs have %v", both)
	}
	must.Do(t, l.Ended(container("2")))
	ahead = slices.DeleteFunc(runs(t, dir), func(path string) bool { return path == ahead[0] })
	if len(ahead) != 1 || ahead[0] == string(second) {
		t.Errorf("after a run of %s there are %v", second, ahead)
	}
	if third := inject(t, l, container("3")); string(third) != ahead[0] {
		t.Errorf("%s is not what was made ahead, %v", third, ahead)
	}
	// Late, when the next one is there already.
	must.Do(t, l.Ended(container("1")))
	if left := runs(t, dir); !slices.Contains(left, ahead[0]) || len(left) != 2 {
		t.Errorf("a late end leaves %v, want %s and the next", left, ahead[0])
	}
}

// Every user of the container sees the folder, whatever the agent's umask is.
func TestFolderIsReadable(t *testing.T) {
	before := syscall.Umask(0o077)
	t.Cleanup(func() { syscall.Umask(before) })
	dir := inject(t, newLimiter(t, t.TempDir(), nil), container("1"))
	for path, want := range map[string]os.FileMode{
		string(dir): os.ModeDir | 0o755, dir.library(): 0o755, dir.limits(): 0o444, dir.counters(): 0o666,
	} {
		if got := stat(t, path).Mode(); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// Invariant 4: a running container keeps its files when an agent with another
// library takes over; containers from then on have the new one. What it left for
// runs that never came is cleared.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	old := bringing(t, "old", dir, nil)
	running, ended := inject(t, old, container("1")), inject(t, old, container("2"))
	must.Do(t, old.Prepare(container("")))

	l := bringing(t, "new", dir, nil)
	must.Do(t, l.Prepare(container("")))
	found := container("1")
	found.Mounts = []*api.Mount{{Destination: "/etc"}, {Destination: layout.Folder, Source: string(running)}}
	next := inject(t, l, container("3"))
	must.Do(t, l.Prepare(container("")))
	must.Do(t, l.Sweep(func() []mode.Container { return []mode.Container{found} }))
	if left := runs(t, dir); len(left) != 3 || slices.Contains(left, string(ended)) {
		t.Errorf("left: %v", left)
	}
	for path, want := range map[string]string{running.library(): "old", next.library(): "new"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v, want %q", path, text, err, want)
		}
	}
	if _, err := layout.ReadUsage(running.counters()); err != nil {
		t.Error(err)
	}
	// All containers share the pages of one library.
	if !os.SameFile(stat(t, next.library()), stat(t, l.files.library())) {
		t.Error("the library was copied")
	}
	if got := l.Recall(found, nil); len(got) != 2 || got[0].Mem != 1024 {
		t.Errorf("recalled %+v", got)
	}
	must.Do(t, l.Ended(found))
	if left := runs(t, dir); len(left) != 2 || slices.Contains(left, string(running)) {
		t.Errorf("left: %v", left)
	}
}

// A container's mounts name its folder only where that is one of its own: what is
// mounted there may be a volume of the tenant's.
func TestForeignFolder(t *testing.T) {
	dir := t.TempDir()
	l := newLimiter(t, dir, nil)
	other := container("1")
	other.Name = "other"
	taken := inject(t, l, other)
	own := filepath.Join(dir, podID, "main")
	for _, source := range []string{string(taken), dir, filepath.Dir(own), own, own + "/", own + "/.", own + "/..",
		own + "/../other", own + "/run-1/../../other", "/var/lib/kubelet/run-1", ""} {
		c := container("2")
		c.Mounts = []*api.Mount{{Destination: layout.Folder, Source: source}}
		must.Do(t, l.Ended(c))
		if got := l.Recall(c, nil); got != nil {
			t.Errorf("%s: recalled %+v", source, got)
		}
	}
	if _, err := os.Stat(taken.library()); err != nil {
		t.Errorf("another container's folder is gone: %v", err)
	}
}

// A library that cannot be linked is copied.
func TestLibraryElsewhere(t *testing.T) {
	dir := t.TempDir()
	elsewhere, err := os.MkdirTemp("/dev/shm", "vernier-")
	if err != nil {
		t.Skip("no second file system:", err)
	}
	t.Cleanup(func() { must.Do(t, os.RemoveAll(elsewhere)) })
	must.Do(t, os.Symlink(elsewhere, filepath.Join(dir, libFolder)))
	l := newLimiter(t, dir, nil)
	if os.Link(l.files.library(), filepath.Join(dir, "link")) == nil {
		t.Skip("/dev/shm is on the same file system")
	}
	got := inject(t, l, container("1"))
	if text, err := os.ReadFile(got.library()); err != nil || string(text) != "library" {
		t.Errorf("library %q, %v", text, err)
	}
	if mode := stat(t, got.library()).Mode(); mode != 0o755 {
		t.Errorf("library is %v", mode)
	}
}

// What is mounted is what the ledger grants and what the agent brought, also after
// the ledger has changed, or the state directory was cleared.
func TestInjectMakesAnew(t *testing.T) {
	for name, change := range map[string]func(folder, *mode.Container) error{
		"nothing": func(folder, *mode.Container) error { return nil },
		"other grants": func(_ folder, c *mode.Container) error {
			c.Grants = slices.Clone(c.Grants)
			c.Grants[0].Mem = 512
			return nil
		},
		"library gone": func(next folder, _ *mode.Container) error { return os.Remove(next.library()) },
		"all gone":     func(next folder, _ *mode.Container) error { return next.remove() },
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), container("1")
			l := newLimiter(t, dir, nil)
			must.Do(t, l.Prepare(c))
			must.Do(t, change(folder(runs(t, dir)[0]), &c))
			got := inject(t, l, c)
			limits, err := layout.ReadFile(got.limits())
			if err != nil || len(limits.Devices) != 2 || limits.Devices[0].MemoryBytes != c.Grants[0].Mem.Bytes() || limits.Devices[0].Core != 30 || limits.Devices[1].Core != 0 {
				t.Errorf("Invariant 1: limits %+v, %v", limits, err)
			}
			if text, err := os.ReadFile(got.library()); err != nil || string(text) != "library" {
				t.Errorf("Invariant 2: library %q, %v", text, err)
			}
			if _, err := layout.ReadUsage(got.counters()); err != nil {
				t.Error(err)
			}
			if left := runs(t, dir); len(left) != 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	dir := t.TempDir()
	// Whoever has set the state directory may have put it where other things are.
	others := filepath.Join(dir, "postgres", "data", "run-1")
	must.Do(t, os.MkdirAll(others, 0o755))
	l := newLimiter(t, dir, nil)
	must.Do(t, l.Prepare(container("")))
	if pods, err := l.Pods(); err != nil || !slices.Equal(pods, []types.UID{podID}) {
		t.Errorf("pods %v, %v", pods, err)
	}
	for range 2 {
		must.Do(t, l.Release(podID))
	}
	if pods, err := l.Pods(); err != nil || len(pods) != 0 {
		t.Errorf("pods %v, %v", pods, err)
	}
	for _, evil := range []types.UID{"", ".", "..", "../x", "a/b", libFolder} {
		if l.Release(evil) == nil {
			t.Errorf("%q was released", evil)
		}
	}
	if _, err := os.Stat(l.files.library()); err != nil {
		t.Errorf("the library is gone: %v", err)
	}
	must.Do(t, l.Sweep(func() []mode.Container { return nil }))
	if _, err := os.Stat(others); err != nil {
		t.Errorf("what is not ours is gone: %v", err)
	}
}

// availableDriver has memory limits, and no device was asked for one yet.
type availableDriver struct{}

func (availableDriver) Snapshot() (device.Snapshot, bool) {
	return device.Snapshot{Driver: v1alpha1.DriverStatus{MemoryLimits: true}}, true
}

func (availableDriver) Library() (device.Library, error) { return nil, errors.New("not open") }

// What the image preloads is loaded after our library, from the very file that is
// mounted; where that cannot be had the container does not start.
func TestImagePreload(t *testing.T) {
	const ours = layout.LibraryPath + "\n"
	for name, c := range map[string]struct {
		own      string
		prepare  func(*testing.T, folder)
		want, is string
	}{
		"none":    {want: ours},
		"its own": {own: "/lib/own.so\n", want: ours + "/lib/own.so\n"},
		"cannot be written": {own: "/lib/own.so\n", prepare: func(t *testing.T, dir folder) {
			must.Do(t, os.Remove(dir.preload()))
			must.Do(t, os.Mkdir(dir.preload(), 0o755))
		}, is: "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, t.TempDir(), cooperative())
			l.ImagePreload = func(pid uint32) []byte {
				if pid != 7 {
					t.Errorf("asked about process %d", pid)
				}
				return []byte(c.own)
			}
			dir := inject(t, l, container("1"))
			mounted := stat(t, dir.preload())
			if c.prepare != nil {
				c.prepare(t, dir)
			}
			_, err := l.Apply(container("1"), 7)
			if c.is != "" {
				if err == nil || !strings.Contains(err.Error(), c.is) {
					t.Errorf("Invariant 2: %v, want %q", err, c.is)
				}
				return
			}
			must.Do(t, err)
			got, err := os.ReadFile(dir.preload())
			if now := stat(t, dir.preload()); err != nil || string(got) != c.want || !os.SameFile(mounted, now) || now.Mode().Perm() != 0o644 {
				t.Errorf("%q %v, %v; want %q in the file that is mounted", got, now.Mode(), err, c.want)
			}
		})
	}
}

// A running container is resized, and only that: its status and a lost ledger have what is in
// force, and its counters are read by it. Errors are those of the layout.
func TestResize(t *testing.T) {
	l := newLimiter(t, t.TempDir(), cooperative())
	c := container("1")
	uuid := c.Grants[0].UUID
	if err := l.Resize(c, 1, uuid, 10, 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v before the container was given anything", err)
	}
	dir := inject(t, l, c)
	must.Do(t, l.Resize(c, 1, uuid, 77, 100<<10))
	if got := l.Recall(c, nil); got[0].Core != 77 || got[0].Mem != 100<<10 || got[1].Mem != c.Grants[1].Mem {
		t.Errorf("in force are %+v", got)
	}
	process := must.Get(os.OpenFile(dir.counters(), os.O_WRONLY, 0))(t) // lives
	defer func() { _ = process.Close() }()
	write := func(offset int64, bytes uint64) {
		t.Helper()
		must.Get(process.WriteAt(binary.LittleEndian.AppendUint64(nil, bytes), 64+offset))(t)
	}
	const used, peak = 0, 24 // of the first device
	write(used, 50<<30)
	write(peak, 100<<30)
	if _, err := l.Usage(c); err != nil {
		t.Error(err)
	}
	if _, ok := errors.AsType[*layout.InfeasibleError](l.Resize(c, 1, uuid, 1, 1)); !ok {
		t.Error("a limit below what is used is in force")
	}
	write(used, 0)
	must.Do(t, l.Resize(c, 1, uuid, 1, 1))
	if usage, err := l.Usage(c); err != nil || usage.Devices[0].PeakBytes != 100<<30 {
		t.Errorf("%v; the peak of before is not read", err)
	}
	if got := l.Recall(c, nil); got[0].Core != 1 || got[0].Mem != 1 {
		t.Errorf("in force are %+v", got)
	}
}
