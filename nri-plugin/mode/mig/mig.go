// SPDX-License-Identifier: Apache-2.0

// Package mig owns the mode in which a slice is an instance of its own, cut out of
// the device by the hardware. It makes an instance where the ledger has a slice and
// none is there, before the container is created. It destroys its own instance
// when the ledger has no slice on it any more. An instance that is there already
// is used.
//
// It never destroys an instance that somebody else has made, nor one that a
// container has, and never switches a device's MIG mode.
package mig

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// Node is what the mode needs of the node. All fields are required.
type Node struct {
	Devices device.Devices
	// Index is the latest ledger.
	Index func() *ledger.Index
	// Containers that the runtime has and that hold slices; false while the runtime
	// is out of sight, and they may be others.
	Containers func() (all []mode.Container, known bool)
}

// Mode is the mode.
type Mode struct {
	node Node

	// mu is held while instances are made and destroyed, which takes seconds. The
	// creation of a container must not wait for it.
	mu   sync.Mutex
	made *made

	giving sync.Mutex
	// given are the UUIDs that containers were given, by the runtime's id.
	given map[string][]string
}

// New keeps in a file of that path what it makes.
func New(path string, node Node) (*Mode, error) {
	m, err := load(path)
	if err != nil {
		return nil, err
	}
	return &Mode{node: node, made: m, given: map[string][]string{}}, nil
}

// Supports needs a device in MIG mode that has the slice's kind of instance.
func (*Mode) Supports(d v1alpha1.DeviceStatus, g ledger.Grant) error {
	switch {
	case d.MIG == v1alpha1.MIGUnsupported:
		return errors.New("the device has no MIG")
	case d.MIG != v1alpha1.MIGEnabled:
		return errors.New("MIG is off on the device")
	case !slices.ContainsFunc(d.Profiles, func(p v1alpha1.MIGProfile) bool { return p.ID == g.MIG.Profile && p.Size == g.MIG.Size }):
		return fmt.Errorf("its driver has no MIG profile %d over %d slices; delete the pod so that it is placed again", g.MIG.Profile, g.MIG.Size)
	}
	if i, found := at(d.Instances, g.MIG); found && i.Reason != "" {
		return fmt.Errorf("its MIG instance of profile %d at %d is unhealthy: %s; delete the pod so that it is placed again", g.MIG.Profile, g.MIG.Start, i.Reason)
	}
	return nil
}

// Inject gives the instances by the names that the CDI spec has for them. One that
// is not in the latest picture is not in the spec.
func (m *Mode) Inject(c mode.Container, adjust *api.ContainerAdjustment) error {
	now, _ := m.node.Devices.Snapshot()
	var uuids []string
	for _, g := range c.Grants {
		d, _ := now.Device(g.UUID)
		i, found := at(d.Instances, g.MIG)
		if !found || i.UUID == "" {
			return fmt.Errorf("the MIG instance of profile %d at %d on device %s is not ready. It is tried again, and the agent's log says what keeps it", g.MIG.Profile, g.MIG.Start, g.UUID)
		}
		uuids = append(uuids, i.UUID)
		adjust.AddCDIDevice(&api.CDIDevice{Name: v1alpha1.CDIKind + "=" + i.UUID})
	}
	m.giving.Lock()
	defer m.giving.Unlock()
	m.given[c.ID] = uuids
	return nil
}

// Apply reads back from the driver that the instances are those that the container
// was given: one that was made again since has other rights.
func (m *Mode) Apply(c mode.Container, _ uint32) ([]v1alpha1.SliceStatus, error) {
	all, err := m.look(c)
	if err != nil {
		return nil, err
	}
	m.giving.Lock()
	given := m.given[c.ID]
	m.giving.Unlock()
	statuses := make([]v1alpha1.SliceStatus, 0, len(c.Grants))
	for i, g := range c.Grants {
		if all[i] == "" || given != nil && given[i] != all[i] {
			return nil, fmt.Errorf("the MIG instance of profile %d at %d on device %s was destroyed after the container had been given it; it is tried again", g.MIG.Profile, g.MIG.Start, g.UUID)
		}
		statuses = append(statuses, status(c, g))
	}
	return statuses, nil
}

// Observe says so if the driver does not have an instance any more.
func (m *Mode) Observe(c mode.Container, _ uint32) []v1alpha1.SliceStatus {
	all, err := m.look(c)
	if err != nil {
		return nil
	}
	statuses := make([]v1alpha1.SliceStatus, 0, len(c.Grants))
	for i, g := range c.Grants {
		s := status(c, g)
		if all[i] == "" {
			s.Memory, s.Compute, s.Note = v1alpha1.GuaranteeNone, v1alpha1.GuaranteeNone, "its MIG instance is gone; delete the pod"
		}
		statuses = append(statuses, s)
	}
	return statuses
}

// look asks the driver for the UUIDs of the container's instances; one that is not
// there is empty.
func (m *Mode) look(c mode.Container) ([]string, error) {
	library, err := m.node.Devices.Library()
	if err != nil {
		return nil, err
	}
	uuids := make([]string, 0, len(c.Grants))
	for _, g := range c.Grants {
		all, err := library.Instances(g.UUID)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w; check nvidia-smi on the node", g.UUID, err)
		}
		i, _ := at(all, g.MIG)
		uuids = append(uuids, i.UUID)
	}
	return uuids, nil
}

// Recall knows what the ledger's status said. How much of the instance was asked for
// nobody knows; that it lies there is what keeps others away.
func (m *Mode) Recall(c mode.Container, said []v1alpha1.SliceStatus) []ledger.Grant {
	var grants []ledger.Grant
	for _, s := range said {
		if s.Pod == c.Pod && s.Container == c.ID && s.Mode == v1alpha1.ModeMIG && s.MIG != nil {
			g := mode.Recalled(s.UUID, 0, 0, s.Mode)
			g.MIG = *s.MIG
			grants = append(grants, g)
		}
	}
	return grants
}

// Ended forgets the container; its instances stay for the next of that name.
func (m *Mode) Ended(c mode.Container) error {
	m.giving.Lock()
	defer m.giving.Unlock()
	delete(m.given, c.ID)
	return nil
}

// Release destroys the pod's instances, unless slices of others are on them already.
func (m *Mode) Release(types.UID) error { return m.Sweep() }

func status(c mode.Container, g ledger.Grant) v1alpha1.SliceStatus {
	s := mode.Status(c, g)
	s.Memory, s.Compute, s.MIG = v1alpha1.GuaranteeHardware, v1alpha1.GuaranteeHardware, &g.MIG
	return s
}

// at finds the instance at a place.
func at(all []v1alpha1.MIGInstance, place v1alpha1.MIGPlace) (v1alpha1.MIGInstance, bool) {
	i := slices.IndexFunc(all, func(i v1alpha1.MIGInstance) bool { return i.MIGPlace == place })
	if i < 0 {
		return v1alpha1.MIGInstance{}, false
	}
	return all[i], true
}
