// SPDX-License-Identifier: Apache-2.0

// Package limiter owns the mode that works on every driver: libvgpu inside the
// container's processes, and the driver's own memory limit where there is
// one.
//
// It changes the amounts of a running container by Resize alone.
package limiter

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/nri-plugin/preload"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Limiter enforces by libvgpu inside the container's processes, and by the
// driver's own memory limit on top where there is one.
//
// The library is loaded by a mounted /etc/ld.so.preload, which survives an
// emptied environment. The mount hides a file of that name in the image, whose
// libraries are therefore listed after ours before the container runs.
type Limiter struct {
	files  files
	driver *driverlimit.Limit
	// ImagePreload is what the image of the container with that first process has
	// in /etc/ld.so.preload. Optional; without it that is hidden.
	ImagePreload func(pid uint32) []byte

	mu sync.Mutex
	// ready are the folders that this process has made for next runs, given those
	// that it has given away, by the runtime's id.
	ready map[ledger.Key]made
	given map[string]folder
	paced paced
}

// made is a folder, and what its limits say.
type made struct {
	folder
	grants              []ledger.Grant
	mayBurst, burstable bool
}

// New keeps its files below dir, which must have the same path on the
// node: the runtime mounts from there. The library is the libvgpu.so to install.
func New(dir, library string, driver *driverlimit.Limit) (*Limiter, error) {
	l := &Limiter{files: files{dir: dir}, driver: driver, ready: map[ledger.Key]made{}, given: map[string]folder{}, paced: newPaced()}
	return l, l.files.install(library)
}

// Supports needs a device that isn't cut up, and nothing of its driver.
func (*Limiter) Supports(d v1alpha1.DeviceStatus, _ ledger.Grant) error { return mode.Undivided(d) }

// Prepare makes the library, the limits and the counters of the container's next
// run. Running ones keep theirs.
func (l *Limiter) Prepare(c mode.Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.prepare(c)
	return err
}

// prepare is the folder for the next run: with what the ledger grants, and whole.
// l.mu is held.
func (l *Limiter) prepare(c mode.Container) (folder, error) {
	ready := l.ready[c.Key()]
	if slices.Equal(ready.grants, c.Grants) && ready.mayBurst == c.MayBurst && ready.burstable == c.Burstable && ready.whole() {
		return ready.folder, nil
	}
	delete(l.ready, c.Key())
	var err error
	if ready.folder != "" {
		err = ready.remove()
	}
	if err == nil {
		ready.folder, err = l.files.make(c)
	}
	if err != nil {
		return "", fmt.Errorf("making the limits of container %s of pod %s: %w; check the space on the node's state directory", c.Name, c.Owner, err)
	}
	l.ready[c.Key()] = made{ready.folder, c.Grants, c.MayBurst, c.Burstable}
	return ready.folder, nil
}

// Inject gives the devices, the library and the limits, and counters that no
// earlier run can have damaged. The mounted files are for what the ledger
// grants now.
func (l *Limiter) Inject(c mode.Container, adjust *api.ContainerAdjustment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir, err := l.prepare(c)
	if err != nil {
		return err
	}
	delete(l.ready, c.Key())
	l.given[c.ID] = dir
	mode.InjectDevices(c, adjust)
	adjust.AddMount(bind(dir.preload(), preload.Path, "ro"))
	adjust.AddMount(bind(string(dir), layout.Folder, "ro"))
	adjust.AddMount(bind(dir.counters(), layout.CountersPath, "rw"))
	return nil
}

// folder finds what the run was given; fs.ErrNotExist if it was given nothing.
func (l *Limiter) folder(c mode.Container) (folder, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.find(c)
}

// find is folder with l.mu held.
func (l *Limiter) find(c mode.Container) (folder, error) {
	if dir, ours := l.given[c.ID]; ours {
		return dir, nil
	}
	for _, m := range c.Mounts {
		if dir := folder(m.GetSource()); m.GetDestination() == layout.Folder && l.files.isRun(c, dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the limits of container %s of pod %s: %w", c.Name, c.Owner, fs.ErrNotExist)
}

// Ended removes what the run had and makes ready for the next one.
func (l *Limiter) Ended(c mode.Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paced.end(c.ID)
	if dir, err := l.find(c); err == nil {
		delete(l.given, c.ID)
		if err := dir.remove(); err != nil {
			return err
		}
	}
	_, err := l.prepare(c)
	return err
}

// Sweep removes what runs have left that ended while the agent was away. found are
// all containers that the runtime has, when it is called.
func (l *Limiter) Sweep(found func() []mode.Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := map[folder]bool{}
	for _, ready := range l.ready {
		keep[ready.folder] = true
	}
	for _, dir := range l.given {
		keep[dir] = true
	}
	for _, c := range found() {
		if dir, err := l.find(c); err == nil {
			keep[dir] = true
		}
	}
	return l.files.sweep(keep)
}

func bind(source, destination, access string) *api.Mount {
	return &api.Mount{
		Source: source, Destination: destination, Type: "bind",
		Options: []string{"bind", access, "nosuid", "nodev"},
	}
}

// Apply adds what the image preloads, sets the driver's limit where there is one,
// and lets the container share its devices' time with others.
func (l *Limiter) Apply(c mode.Container, pid uint32) ([]v1alpha1.SliceStatus, error) {
	if err := l.preload(c, pid); err != nil {
		return nil, err
	}
	all := mode.Cooperative(c)
	if err := l.driver.Apply(c, pid, all); err != nil {
		return nil, err
	}
	return l.pace(c, all), nil
}

// Observe reads the driver's limit, and takes sharing time up again.
func (l *Limiter) Observe(c mode.Container, pid uint32) []v1alpha1.SliceStatus {
	all := mode.Cooperative(c)
	if l.driver.Observe(c, pid, all) != nil {
		return nil
	}
	return l.pace(c, all)
}

// Recall reads the limits that are in force in the container.
func (l *Limiter) Recall(c mode.Container, _ []v1alpha1.SliceStatus) []ledger.Grant {
	dir, err := l.folder(c)
	if err != nil {
		return nil
	}
	file, err := layout.InForce(dir.limits(), dir.pace())
	if err != nil { // of a release whose pace file is unknown: its limits never change
		file, err = layout.ReadFile(dir.limits())
	}
	if err != nil {
		return nil
	}
	var grants []ledger.Grant
	for _, d := range file.Devices {
		grants = append(grants, mode.Recalled(d.UUID, v1alpha1.Percent(d.Core), v1alpha1.MiB(d.MemoryBytes>>20), v1alpha1.ModeLimiter))
	}
	return grants
}

// Release removes the pod's files.
func (l *Limiter) Release(pod types.UID) error {
	if name := string(pod); name != filepath.Base(name) || name == "" || name == "." || name == ".." || name == libFolder {
		return fmt.Errorf("%q is no UID", pod)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paced.endPod(pod)
	maps.DeleteFunc(l.ready, func(key ledger.Key, _ made) bool { return key.Pod == pod })
	maps.DeleteFunc(l.given, func(_ string, dir folder) bool { return l.files.owner(dir) == pod })
	return l.files.release(pod)
}

// Pods are the UIDs of pods that have files.
func (l *Limiter) Pods() ([]types.UID, error) { return l.files.pods() }

func limits(c mode.Container) layout.Limits {
	all := layout.Limits{Container: string(c.Pod) + "/" + c.Name}
	for _, g := range c.Grants {
		limit := layout.DeviceLimit{UUID: g.UUID, Core: uint32(g.Core), MemoryBytes: g.Mem.Bytes(), MayBurst: c.MayBurst && g.Core > 0, Idle: g.Idle > 0}
		if c.Burstable && !c.MayBurst && g.Asked.Core > g.Core {
			limit.MayBurst, limit.BurstCore = true, uint32(g.Asked.Core)
		}
		all.Devices = append(all.Devices, limit)
	}
	return all
}
