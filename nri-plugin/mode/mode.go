// SPDX-License-Identifier: Apache-2.0

// Package mode owns how a slice is enforced: the interface Mode, the ladder of all
// modes, and a folder for each that implements it. Nothing else in the agent knows
// one from the other, but for the list of those that a node has.
//
// It never decides which mode a slice has (the ledger says) and never talks to
// the API server.
package mode

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Container is a container that holds slices.
type Container struct {
	// Pod is the UID of its pod, Owner the pod's namespace/name.
	Pod   types.UID
	Owner string
	// Name of the container in the pod.
	Name string
	// ID is the runtime's; empty in Prepare, which runs before there is one.
	ID string
	// Grants are its slices, at least one, all of one mode.
	Grants []ledger.Grant
	// MayBurst: it may use device time beyond its slices that nobody else wants.
	// Known at its creation only; the limits that it was given say it from then on.
	MayBurst bool
	// Burstable: it may do so up to what it asks for.
	Burstable bool
	// Mounts are those of a container that was found at the runtime.
	Mounts []*api.Mount
}

// Key names the container before it has an id.
func (c Container) Key() ledger.Key { return ledger.Key{Pod: c.Pod, Container: c.Name} }

// Mode is one way of enforcing slices. Its methods are called in this order;
// every one may be called again with the same arguments, as after a restart.
type Mode interface {
	// Supports says why the device, as it is now, cannot hold the slice in this way,
	// and what would change that; nil when it can. It looks at nothing else.
	Supports(v1alpha1.DeviceStatus, ledger.Grant) error
	// Prepare does ahead of time what takes time, as soon as the ledger has the
	// slices.
	Prepare(Container) error
	// Inject adds to the adjustment what the container needs. It runs inside the
	// runtime's creation of the container, while the whole node waits: it must
	// not wait for anything but the local disk.
	Inject(Container, *api.ContainerAdjustment) error
	// Apply enforces on a container that exists and does not run yet what needs
	// its process, reads it back, and tells what is in force. The runtime waits
	// for it: one that takes too long is given up. Its work for a container
	// that has Ended by then must leave nothing behind.
	Apply(c Container, pid uint32) ([]v1alpha1.SliceStatus, error)
	// Observe tells what is in force in a container that runs, after a restart
	// of the agent.
	Observe(c Container, pid uint32) []v1alpha1.SliceStatus
	// Recall returns the slices of a container that runs and whose slices the ledger has lost. It
	// reads what Inject left on the node, or the ledger's status of the container; nil when nothing
	// says so. Their PodCore and PodMem are everything: nothing says what the pod's containers share.
	Recall(c Container, said []v1alpha1.SliceStatus) []ledger.Grant
	// Ended makes ready for the next container of that name: this one has ended.
	// It may come late, when the next one is there already.
	Ended(Container) error
	// Release removes what Prepare made for a pod. None of its containers runs
	// any more, nor will again.
	Release(pod types.UID) error
}

// Counter is a mode that knows what its containers use.
type Counter interface {
	// Usage is what the container's processes say they use of its slices, in the
	// order of its grants, and which processes those are. Nobody is stopped for
	// it. It is the tenant's word.
	Usage(Container) (*layout.Usage, error)
}

// Set has the modes of this node by name.
type Set map[v1alpha1.Mode]Mode

// For is the mode of a container's slices.
func (s Set) For(c Container) (Mode, error) {
	if len(c.Grants) == 0 {
		return nil, fmt.Errorf("container %s of pod %s has no slices", c.Name, c.Owner)
	}
	name := c.Grants[0].Mode
	for _, g := range c.Grants {
		if g.Mode != name {
			return nil, fmt.Errorf("the ledger gives container %s of pod %s slices of modes %s and %s; delete the pod so that it is placed again", c.Name, c.Owner, name, g.Mode)
		}
	}
	m, known := s[name]
	if !known {
		return nil, fmt.Errorf("the ledger gives container %s of pod %s mode %s, which this node's agent does not have; update vernier-node", c.Name, c.Owner, name)
	}
	return m, nil
}

// Recall asks every mode for the slices of a container.
func (s Set) Recall(c Container, said []v1alpha1.SliceStatus) []ledger.Grant {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if grants := s[name].Recall(c, said); len(grants) > 0 {
			return grants
		}
	}
	return nil
}

// AtLeast are the container's slices with no less than what is in force in it: the ledger that is
// known may be older. Only mode limiter changes what is in force.
func (s Set) AtLeast(c Container) []ledger.Grant {
	m, err := s.For(c)
	if err != nil || c.Grants[0].Mode != v1alpha1.ModeLimiter {
		return c.Grants
	}
	grants := slices.Clone(c.Grants)
	for _, has := range m.Recall(c, nil) {
		for i := range grants {
			if g := &grants[i]; g.UUID == has.UUID {
				g.Core, g.Mem = max(g.Core, has.Core), max(g.Mem, has.Mem)
			}
		}
	}
	return grants
}

// Usage is what the container's processes say they use; nil where its mode does
// not count, because nothing in the container has to hold it.
func (s Set) Usage(c Container) (*layout.Usage, error) {
	m, err := s.For(c)
	if err != nil {
		return nil, err
	}
	if counter, counts := m.(Counter); counts {
		return counter.Usage(c)
	}
	return nil, nil
}

// Release removes what every mode made for a pod.
func (s Set) Release(pod types.UID) error {
	for name, m := range s {
		if err := m.Release(pod); err != nil {
			return fmt.Errorf("mode %s: %w", name, err)
		}
	}
	return nil
}

// InjectDevices adds each slice's device, by the CDI name that the agent's own
// spec defines.
func InjectDevices(c Container, adjust *api.ContainerAdjustment) {
	for _, g := range c.Grants {
		adjust.AddCDIDevice(&api.CDIDevice{Name: v1alpha1.CDIKind + "=" + g.UUID})
	}
}

// Undivided says that a device in MIG mode runs nothing outside of an instance, and
// one that is shared by MPS nothing but MPS' clients.
func Undivided(d v1alpha1.DeviceStatus) error {
	if d.MPS {
		return errors.New("it is shared by MPS, which lets nothing else use it; it is tried again when that has ended")
	}
	if d.MIG == v1alpha1.MIGEnabled {
		return errors.New("it is in MIG mode; switch it off, or delete the pod so that it is placed on another device")
	}
	return nil
}

// Status begins the status of one slice.
func Status(c Container, g ledger.Grant) v1alpha1.SliceStatus {
	return v1alpha1.SliceStatus{Pod: c.Pod, Ctr: c.Name, UUID: g.UUID, Container: c.ID, Mode: g.Mode}
}

// Cooperative are the statuses of slices whose limits a tenant can get
// around: a library in its processes, or limits that they can drop.
func Cooperative(c Container) []v1alpha1.SliceStatus {
	all := make([]v1alpha1.SliceStatus, 0, len(c.Grants))
	for _, g := range c.Grants {
		s := Status(c, g)
		s.Memory, s.Compute = v1alpha1.GuaranteeCooperative, v1alpha1.GuaranteeCooperative
		if g.Core == 0 {
			s.Compute = v1alpha1.GuaranteeNone
		}
		all = append(all, s)
	}
	return all
}

// Recalled is a slice of which only what the container holds is known.
func Recalled(uuid string, core v1alpha1.Percent, mem v1alpha1.MiB, name v1alpha1.Mode) ledger.Grant {
	return ledger.Grant{UUID: uuid, Core: core, Mem: mem, PodCore: v1alpha1.WholeGPU, PodMem: math.MaxInt64, Mode: name}
}

// Ladder is the modes that others are weaker than, the strongest first. The limiter
// and MPS stand side by side below it: neither holds more than the other.
var Ladder = []v1alpha1.Mode{v1alpha1.ModeExclusive, v1alpha1.ModeMIG}

// ErrRequest is wrapped by Supports where it is the request itself that rules a mode
// out. No status mentions it.
var ErrRequest = errors.New("the request rules it out")

// Supports reports whether the devices can hold the container's slices in their mode.
func (s Set) Supports(now device.Snapshot, c Container) error {
	m, err := s.For(c)
	if err != nil {
		return err
	}
	for _, g := range c.Grants {
		d, found := now.Device(g.UUID)
		if !found {
			return fmt.Errorf("device %s is not on this node any more; delete the pod so that it is placed again", g.UUID)
		}
		if err := m.Supports(d, g); err != nil {
			return fmt.Errorf("device %s: %w", g.UUID, err)
		}
	}
	return nil
}

// Explain adds to the status of each of a container's slices why it isn't in a
// stronger mode. The statuses are in the order of the grants.
func (s Set) Explain(now device.Snapshot, grants []ledger.Grant, all []v1alpha1.SliceStatus) {
	for i := range all {
		d, found := now.Device(all[i].UUID)
		if !found {
			continue
		}
		for _, stronger := range Ladder {
			if stronger == all[i].Mode {
				break
			}
			m, known := s[stronger]
			if !known {
				continue
			}
			switch err := m.Supports(d, grants[i]); {
			case err == nil:
				Note(&all[i], fmt.Sprintf("not %s: the pod asks for %s, by %s or by memory in MiB", stronger, all[i].Mode, v1alpha1.AnnotationMode))
			case !errors.Is(err, ErrRequest):
				Note(&all[i], fmt.Sprintf("not %s: %s", stronger, err))
			}
		}
	}
}

// Note adds to a status why nothing stronger is in force.
func Note(s *v1alpha1.SliceStatus, why string) {
	if s.Note != "" {
		s.Note += "; "
	}
	s.Note += why
}
