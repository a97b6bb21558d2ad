// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-1111-1111-1111-111111111111"
)

func newLimiter(t *testing.T, dir string, driver *DriverLimit) *Limiter {
	t.Helper()
	return bringing(t, "library", dir, driver)
}

// bringing is an agent that comes with that library.
func bringing(t *testing.T, content, dir string, driver *DriverLimit) *Limiter {
	t.Helper()
	library := filepath.Join(t.TempDir(), "libvgpu.so")
	if err := os.WriteFile(library, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := NewLimiter(dir, library, driver)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func container(id string) Container {
	return Container{Pod: "pod-uid", Owner: "team/a", Name: "main", ID: id, Grants: []ledger.Grant{
		{UUID: gpu0, Core: 30, Mem: 1024, Mode: v1alpha1.ModeLimiter},
		{UUID: gpu1, Core: 0, Mem: 2048, Mode: v1alpha1.ModeLimiter},
	}}
}

// run is where the files of a run are.
func run(dir, id string) folder { return folder(filepath.Join(dir, "pod-uid", "main", id)) }

// inject starts a container and tells what it sees as the limiter's folder.
func inject(t *testing.T, l *Limiter, c Container) folder {
	t.Helper()
	adjust := &api.ContainerAdjustment{}
	if err := l.Inject(c, adjust); err != nil {
		t.Fatal(err)
	}
	for _, m := range adjust.GetMounts() {
		if m.GetDestination() == layout.Folder {
			return folder(m.GetSource())
		}
	}
	t.Fatalf("mounts %v", adjust.GetMounts())
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info
}

// Every run has a folder of its own, with counters that no earlier one can have
// damaged: made ahead for the first and for the successor of one that has ended,
// at once for one that comes before. It goes with the run.
func TestRunsAreApart(t *testing.T) {
	dir := t.TempDir()
	l := newLimiter(t, dir, nil)
	must(t, l.Prepare(container("")))
	ahead := stat(t, run(dir, "next").counters())
	first := inject(t, l, container("1"))
	if first != run(dir, "1") || !os.SameFile(ahead, stat(t, first.counters())) {
		t.Error("what was made ahead is not used")
	}
	must(t, l.Prepare(container("")))
	second := inject(t, l, container("2"))
	if !os.SameFile(ahead, stat(t, first.counters())) || os.SameFile(ahead, stat(t, second.counters())) {
		t.Error("a run has another's counters")
	}
	must(t, l.Ended(container("2")))
	if _, err := os.Stat(string(second)); !os.IsNotExist(err) {
		t.Errorf("an ended run leaves its folder: %v", err)
	}
	ahead = stat(t, run(dir, "next").counters())
	third := inject(t, l, container("3"))
	if !os.SameFile(ahead, stat(t, third.counters())) {
		t.Error("what was made ahead for a successor is not used")
	}
	must(t, l.Ended(container("1")))
	if !os.SameFile(ahead, stat(t, third.counters())) {
		t.Error("a late end takes the successor's counters away")
	}
	// A creation of the same id that the runtime repeats.
	if again := inject(t, l, container("3")); os.SameFile(ahead, stat(t, again.counters())) {
		t.Error("a repeated creation has the counters of the one before")
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
// library takes over; containers from then on have the new one.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	old := bringing(t, "old", dir, nil)
	running := inject(t, old, container("1"))
	counters := stat(t, running.counters())
	must(t, old.Prepare(container("")))
	l := bringing(t, "new", dir, nil)
	must(t, l.Prepare(container("")))
	next := inject(t, l, container("2"))
	for path, want := range map[string]string{running.library(): "old", next.library(): "new"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v, want %q", path, text, err, want)
		}
	}
	if !os.SameFile(counters, stat(t, running.counters())) {
		t.Error("the running container's counters were replaced")
	}
	if got := l.Recall(container("1"), nil); len(got) != 2 || got[0].Mem != 1024 {
		t.Errorf("recalled %+v", got)
	}
	// All containers share the pages of one library.
	if !os.SameFile(stat(t, next.library()), stat(t, l.files.library())) {
		t.Error("the library was copied")
	}
}

// A library that cannot be linked is copied.
func TestLibraryElsewhere(t *testing.T) {
	dir := t.TempDir()
	elsewhere, err := os.MkdirTemp("/dev/shm", "vernier-")
	if err != nil {
		t.Skip("no second file system:", err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(elsewhere)) })
	must(t, os.Symlink(elsewhere, filepath.Join(dir, libFolder)))
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
// the ledger has changed, or a file has. A missing library would fail nothing.
func TestInjectMakesAnew(t *testing.T) {
	for name, change := range map[string]func(folder, *Container) error{
		"nothing": func(folder, *Container) error { return nil },
		"other limits": func(next folder, _ *Container) error {
			return layout.WriteFile(next.limits(), layout.Limits{Devices: []layout.DeviceLimit{{UUID: gpu0, MemoryBytes: 1 << 40}}})
		},
		"other grants": func(_ folder, c *Container) error {
			c.Grants = slices.Clone(c.Grants)
			c.Grants[0].Mem = 512
			return nil
		},
		"library gone": func(next folder, _ *Container) error { return os.Remove(next.library()) },
		"other library": func(next folder, _ *Container) error {
			return errors.Join(os.Remove(next.library()), os.WriteFile(next.library(), nil, 0o600))
		},
		"all gone": func(next folder, _ *Container) error { return os.RemoveAll(string(next)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), container("1")
			l := newLimiter(t, dir, nil)
			must(t, l.Prepare(c))
			must(t, change(run(dir, "next"), &c))
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
		})
	}
}

func TestRelease(t *testing.T) {
	dir := t.TempDir()
	l := newLimiter(t, dir, nil)
	if err := l.Prepare(container("")); err != nil {
		t.Fatal(err)
	}
	if pods, err := l.Pods(); err != nil || !slices.Equal(pods, []types.UID{"pod-uid"}) {
		t.Errorf("pods %v, %v", pods, err)
	}
	for range 2 {
		if err := l.Release("pod-uid"); err != nil {
			t.Fatal(err)
		}
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
}

// A container that has no cgroup of its own is held by the library alone, and its
// status says so; one whose cgroup cannot be read is not started.
func TestDriverLimitFallsBack(t *testing.T) {
	devices := availableDriver{}
	for name, c := range map[string]struct {
		leaf func(uint32, string) (string, error)
		note string
		err  string
	}{
		"shared cgroup": {leaf: func(uint32, string) (string, error) { return "", fmt.Errorf("%w: in /", cgroup.ErrNone) }, note: "directory of its own"},
		"no hierarchy":  {note: "no cgroup v2"},
		"process gone":  {leaf: func(uint32, string) (string, error) { return "", errors.New("no such process") }, err: "no such process"},
	} {
		l := newLimiter(t, t.TempDir(), &DriverLimit{Devices: devices, Leaf: c.leaf})
		got, err := l.Apply(container("1"), 1)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("Invariant 2: %s: %v, want %q", name, err, c.err)
			}
			continue
		}
		if err != nil || len(got) != 2 {
			t.Errorf("%s: %v, %v", name, got, err)
			continue
		}
		for i, want := range []v1alpha1.Guarantee{v1alpha1.GuaranteeCooperative, v1alpha1.GuaranteeNone} {
			if got[i].Memory != v1alpha1.GuaranteeCooperative || got[i].Compute != want || !strings.Contains(got[i].Note, c.note) {
				t.Errorf("%s: %+v", name, got[i])
			}
		}
	}
}

// availableDriver has memory limits, and no device was asked for one yet.
type availableDriver struct{}

func (availableDriver) Snapshot() (device.Snapshot, bool) {
	return device.Snapshot{Driver: v1alpha1.DriverStatus{MemoryLimits: true}}, true
}

func (availableDriver) Library() (device.Library, error) { return nil, errors.New("not open") }

func TestSetRefusesMixtures(t *testing.T) {
	c := container("1")
	c.Grants[1].Mode = v1alpha1.ModeExclusive
	all := Set{v1alpha1.ModeLimiter: Exclusive{}, v1alpha1.ModeExclusive: Exclusive{}}
	if _, err := all.For(c); err == nil || !strings.Contains(err.Error(), "limiter and exclusive") {
		t.Errorf("%v", err)
	}
	if _, err := all.For(Container{Name: "main", Owner: "team/a"}); err == nil {
		t.Error("a container without slices has a mode")
	}
}
