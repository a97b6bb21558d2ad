// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
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
}

// NewLimiter keeps its files below dir, which must have the same path on the
// node: the runtime mounts from there. library is the libvgpu.so to install.
func NewLimiter(dir, library string, driver *DriverLimit) (*Limiter, error) {
	l := &Limiter{files: files{dir: dir}, driver: driver}
	return l, l.files.install(library)
}

// Prepare writes the limits of the container.
func (l *Limiter) Prepare(c Container) error {
	if err := l.files.prepare(c); err != nil {
		return fmt.Errorf("writing the limits of container %s of pod %s: %w; check the space on the node's state directory", c.Name, c.Owner, err)
	}
	return nil
}

// Inject gives the devices, the library and the limits. The limits on the disk
// are compared with the ledger's: what is mounted is what was granted.
func (l *Limiter) Inject(c Container, adjust *api.ContainerAdjustment) error {
	want := limits(c)
	got, err := layout.ReadFile(l.files.limits(c))
	if err != nil || !reflect.DeepEqual(got, want) {
		// Not prepared, prepared for other grants, or damaged.
		if err := l.Prepare(c); err != nil {
			return err
		}
	}
	// Every container starts from zero, with counters that no earlier one can
	// have damaged.
	if err := layout.CreateCounters(l.files.counters(c), len(c.Grants)); err != nil {
		return fmt.Errorf("creating the counters of container %s of pod %s: %w; check the space on the node's state directory", c.Name, c.Owner, err)
	}
	injectDevices(c, adjust)
	adjust.AddMount(bind(l.files.preload(), preloadPath, "ro"))
	adjust.AddMount(bind(l.files.library(), libraryPath, "ro"))
	adjust.AddMount(bind(l.files.limits(c), layout.LimitsPath, "ro"))
	adjust.AddMount(bind(l.files.counters(c), layout.CountersPath, "rw"))
	return nil
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
	if pod == "" || pod != types.UID(filepath.Base(string(pod))) {
		return fmt.Errorf("%q is no UID", pod)
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
