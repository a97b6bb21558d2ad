// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	library := filepath.Join(t.TempDir(), "libvgpu.so")
	if err := os.WriteFile(library, []byte("library"), 0o600); err != nil {
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

func inode(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Every container starts with counters of its own: they are made ahead for the
// first one and for the successor of one that has ended, and at once for one
// that comes before.
func TestCountersAreFresh(t *testing.T) {
	dir := t.TempDir()
	l := newLimiter(t, dir, nil)
	counters := filepath.Join(dir, "pod-uid", "main", "counters")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	inject := func(id string) os.FileInfo {
		t.Helper()
		must(l.Inject(container(id), &api.ContainerAdjustment{}))
		return inode(t, counters)
	}
	must(l.Prepare(container("")))
	ahead := inode(t, counters)
	first := inject("1")
	if !os.SameFile(ahead, first) {
		t.Error("the counters that were made ahead are not used")
	}
	must(l.Prepare(container("")))
	if !os.SameFile(first, inode(t, counters)) {
		t.Error("preparing takes a container's counters away")
	}
	second := inject("2")
	if os.SameFile(first, second) {
		t.Error("a container has its predecessor's counters")
	}
	must(l.Ended(container("1")))
	if !os.SameFile(second, inode(t, counters)) {
		t.Error("a late end takes the successor's counters away")
	}
	must(l.Ended(container("2")))
	third := inode(t, counters)
	if os.SameFile(second, third) {
		t.Error("no counters are made ahead for a successor")
	}
	if !os.SameFile(third, inject("3")) {
		t.Error("the counters that were made ahead for a successor are not used")
	}
	// A new process of the agent does not know who uses them.
	again := newLimiter(t, dir, nil)
	must(again.Prepare(container("")))
	if !os.SameFile(third, inode(t, counters)) {
		t.Error("Invariant 4: a restarted agent takes a container's counters away")
	}
}

// Limits are the ledger's also after it has changed, or after the file has.
func TestLimitsFollowTheLedger(t *testing.T) {
	dir := t.TempDir()
	l := newLimiter(t, dir, nil)
	path := filepath.Join(dir, "pod-uid", "main", "limits")
	c := container("1")
	if err := l.Prepare(c); err != nil {
		t.Fatal(err)
	}
	forged := layout.Limits{Devices: []layout.DeviceLimit{{UUID: gpu0, MemoryBytes: 1 << 40}}}
	if err := layout.WriteFile(path, forged); err != nil {
		t.Fatal(err)
	}
	for _, mem := range []v1alpha1.MiB{1024, 512} {
		c.Grants = slices.Clone(c.Grants)
		c.Grants[0].Mem = mem
		if err := l.Inject(c, &api.ContainerAdjustment{}); err != nil {
			t.Fatal(err)
		}
		got, err := layout.ReadFile(path)
		if err != nil || len(got.Devices) != 2 || got.Devices[0].MemoryBytes != mem.Bytes() || got.Devices[0].Core != 30 || got.Devices[1].Core != 0 {
			t.Errorf("Invariant 1: limits %+v, %v; want %d MiB", got, err, mem)
		}
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
