// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Paths inside a container, beside layout.LimitsPath and layout.CountersPath.
const (
	libraryPath = "/usr/local/vernier/libvgpu.so"
	preloadPath = "/etc/ld.so.preload"
)

// Limiter enforces by libvgpu inside the container's processes, and by the
// driver's own memory limit on top where there is one.
//
// The library is loaded by a mounted /etc/ld.so.preload, which survives an
// emptied environment. The mount hides a file of that name in the image: the
// image's root is not known when the runtime asks, so it cannot be merged.
type Limiter struct {
	files  files
	driver *DriverLimit

	mu sync.Mutex
	// prepared are the limits that this process has written.
	prepared map[ledger.Key]written
	// counters tells, for files that this process has made, the id of the
	// container that they were given to; empty: to none yet.
	counters map[ledger.Key]string
}

// written are limits on the disk, and the file as it was then.
type written struct {
	grants []ledger.Grant
	file   os.FileInfo
}

// NewLimiter keeps its files below dir, which must have the same path on the
// node: the runtime mounts from there. library is the libvgpu.so to install.
func NewLimiter(dir, library string, driver *DriverLimit) (*Limiter, error) {
	l := &Limiter{files: files{dir: dir}, driver: driver, prepared: map[ledger.Key]written{}, counters: map[ledger.Key]string{}}
	return l, l.files.install(library)
}

// Prepare writes the limits of the container, and counters for its first run
// unless they are in use.
func (l *Limiter) Prepare(c Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.prepare(c)
}

func (l *Limiter) prepare(c Container) error {
	file, err := l.files.prepare(c)
	l.prepared[c.key()] = written{grants: c.Grants, file: file}
	// Counters that an earlier process of the agent has made may be in use.
	if _, made := l.counters[c.key()]; err == nil && !made && !l.files.has(l.files.counters(c)) {
		err = l.renew(c)
	}
	if err != nil {
		return fmt.Errorf("writing the limits of container %s of pod %s: %w; check the space on the node's state directory", c.Name, c.Owner, err)
	}
	return nil
}

// Inject gives the devices, the library and the limits. What is mounted is what
// the ledger grants: the limits were written for the same grants, and the file
// has not been touched since, or they are written now.
func (l *Limiter) Inject(c Container, adjust *api.ContainerAdjustment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.prepared[c.key()]; !slices.Equal(before.grants, c.Grants) || !l.files.same(l.files.limits(c), before.file) {
		if err := l.prepare(c); err != nil {
			return err
		}
	}
	// Every container starts from zero, with counters that no earlier one can
	// have damaged. Making them takes longer than all else here, so they are
	// there already but in a hurry.
	if user, made := l.counters[c.key()]; !made || user != "" || !l.files.has(l.files.counters(c)) {
		if err := l.renew(c); err != nil {
			return fmt.Errorf("creating the counters of container %s of pod %s: %w; check the space on the node's state directory", c.Name, c.Owner, err)
		}
	}
	l.counters[c.key()] = c.ID
	injectDevices(c, adjust)
	adjust.AddMount(bind(l.files.preload(), preloadPath, "ro"))
	adjust.AddMount(bind(l.files.library(), libraryPath, "ro"))
	adjust.AddMount(bind(l.files.limits(c), layout.LimitsPath, "ro"))
	adjust.AddMount(bind(l.files.counters(c), layout.CountersPath, "rw"))
	return nil
}

// renew makes new counters. l.mu is held.
func (l *Limiter) renew(c Container) error {
	if err := layout.CreateCounters(l.files.counters(c), len(c.Grants)); err != nil {
		return err
	}
	l.counters[c.key()] = ""
	return nil
}

// Ended makes new counters for the next container, unless it has them already.
func (l *Limiter) Ended(c Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if user, made := l.counters[c.key()]; !made || user != c.ID {
		return nil
	}
	return l.renew(c)
}

func bind(source, destination, access string) *api.Mount {
	return &api.Mount{
		Source: source, Destination: destination, Type: "bind",
		Options: []string{"bind", access, "nosuid", "nodev"},
	}
}

// Apply sets the driver's limit where there is one.
func (l *Limiter) Apply(c Container, pid uint32) ([]v1alpha1.SliceStatus, error) {
	return l.statuses(c, func(i int, cgroup string) error { return l.driver.set(c.Grants[i], cgroup) }, pid)
}

// Observe reads the driver's limit.
func (l *Limiter) Observe(c Container, pid uint32) []v1alpha1.SliceStatus {
	all, err := l.statuses(c, func(i int, cgroup string) error {
		if err := l.driver.verify(c.Grants[i], cgroup); err != nil {
			return weaker{err}
		}
		return nil
	}, pid)
	if err != nil {
		return nil
	}
	return all
}

// Recall reads the limits that the container was given. They are written for
// nobody else, and go only with the pod.
func (l *Limiter) Recall(c Container, _ []v1alpha1.SliceStatus) []ledger.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := layout.ReadFile(l.files.limits(c))
	if err != nil {
		return nil
	}
	var grants []ledger.Grant
	for _, d := range file.Devices {
		grants = append(grants, recalled(d.UUID, v1alpha1.Percent(d.Core), v1alpha1.MiB(d.MemoryBytes>>20), v1alpha1.ModeLimiter))
	}
	return grants
}

// statuses calls hold for every slice. An error that is a weaker one lowers the
// guarantee and says so; any other ends it.
func (l *Limiter) statuses(c Container, hold func(i int, cgroup string) error, pid uint32) ([]v1alpha1.SliceStatus, error) {
	cgroup, unavailable := l.driver.cgroup(c, pid)
	if unavailable != nil && !errors.As(unavailable, &weaker{}) {
		return nil, unavailable
	}
	all := make([]v1alpha1.SliceStatus, 0, len(c.Grants))
	for i, g := range c.Grants {
		s := status(c, g)
		err := unavailable
		if err == nil {
			err = hold(i, cgroup)
		}
		switch {
		case err == nil:
			s.Memory = v1alpha1.GuaranteeDriver
		case errors.As(err, &weaker{}):
			s.Memory, s.Note = v1alpha1.GuaranteeCooperative, "no driver memory limit: "+err.Error()
		default:
			return nil, err
		}
		s.Compute = v1alpha1.GuaranteeCooperative
		if g.Core == 0 {
			s.Compute = v1alpha1.GuaranteeNone
		}
		all = append(all, s)
	}
	return all, nil
}

// Release removes the pod's files.
func (l *Limiter) Release(pod types.UID) error {
	if name := string(pod); name != filepath.Base(name) || name == "" || name == "." || name == ".." || name == libFolder {
		return fmt.Errorf("%q is no UID", pod)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.counters {
		if key.Pod == pod {
			delete(l.counters, key)
		}
	}
	for key := range l.prepared {
		if key.Pod == pod {
			delete(l.prepared, key)
		}
	}
	return os.RemoveAll(l.files.pod(pod))
}

// Pods are the UIDs of pods that have files.
func (l *Limiter) Pods() ([]types.UID, error) { return l.files.pods() }

func limits(c Container) layout.Limits {
	all := layout.Limits{Container: string(c.Pod) + "/" + c.Name}
	for _, g := range c.Grants {
		all.Devices = append(all.Devices, layout.DeviceLimit{UUID: g.UUID, Core: uint32(g.Core), MemoryBytes: g.Mem.Bytes()})
	}
	return all
}
