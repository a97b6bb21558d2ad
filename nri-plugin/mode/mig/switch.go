// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// Switch puts the node's devices into MIG mode where its operator wants it, one
// at a time and only one that nothing is on. It never takes one out of MIG mode.
//
// It does so whether a slice waits for an instance or not. That is a decision: the way
// back is by hand. One pod's request must not take the node's idle devices from all
// that need them whole or in other modes.
//
// A slice that is granted just then must not find another device than it was planned for.
// So the device is first shown as unhealthy. Every later grant has seen that, for a grant on
// what was read before fails. An earlier grant is in the ledger that is read then.
type Switch struct {
	Node Node
	// Wanted reports whether it is to be done on this node.
	Wanted func() bool
	// Withdraw writes the latest picture into the ledger's status, and returns the ledger
	// as it is after that.
	Withdraw func(context.Context) (*v1alpha1.SliceLedger, error)
	// Tell tells how it went. The action names the device: what is said of two of them
	// is not one and the same.
	Tell func(action, message string)

	mu      sync.Mutex
	leaving string
	// refused are devices that the driver did not switch, until when they are left alone.
	refused map[string]time.Time
}

const (
	// SwitchPeriod is the pause between two calls of Look.
	SwitchPeriod = 2 * time.Second
	// switchAgain is the pause after a device was not switched, switchNever after one that
	// cannot be.
	switchAgain = 10 * time.Minute
	switchNever = 100 * 365 * 24 * time.Hour
)

// Mark keeps slices off the device that is about to be switched.
func (s *Switch) Mark(now *device.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range now.Devices {
		if d := &now.Devices[i]; d.UUID == s.leaving && d.Healthy {
			d.Healthy, d.Reason = false, "it is being put into MIG mode"
		}
	}
}

func (s *Switch) leave(uuid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = uuid
}

// Look switches one device, if there is one to be switched.
func (s *Switch) Look(ctx context.Context, at time.Time) error {
	now, scanned := s.Node.Devices.Snapshot()
	if !scanned || !s.Wanted() {
		return nil
	}
	for _, d := range now.Devices {
		if d.MIG != v1alpha1.MIGDisabled || !d.Healthy || d.MPS || s.granted(d.UUID) || at.Before(s.refused[d.UUID]) {
			continue
		}
		if idle, err := s.idle(d.UUID); err != nil || !idle {
			continue // it is looked at again
		}
		return s.put(ctx, d, at)
	}
	return nil
}

// granted reports whether the ledger that was seen last has a slice of the device.
func (s *Switch) granted(uuid string) (has bool) {
	s.Node.Index().Each(func(_ ledger.Key, grants []ledger.Grant) {
		has = has || slices.ContainsFunc(grants, func(g ledger.Grant) bool { return g.UUID == uuid })
	})
	return has
}

// idle reports whether no container has a slice of the device, and no process uses it.
func (s *Switch) idle(uuid string) (bool, error) {
	all, known := s.Node.Containers()
	if !known {
		return false, nil
	}
	for _, c := range all {
		if slices.ContainsFunc(c.Grants, func(g ledger.Grant) bool { return g.UUID == uuid }) {
			return false, nil
		}
	}
	library, err := s.Node.Devices.Library()
	if err != nil {
		return false, err
	}
	pids, err := library.Processes(uuid)
	return err == nil && len(pids) == 0, err
}

func (s *Switch) put(ctx context.Context, d v1alpha1.DeviceStatus, at time.Time) (err error) {
	s.leave(d.UUID)
	defer func() {
		s.leave("")
		if bad := s.Node.Devices.Refresh(); err == nil {
			err = bad
		}
	}()
	if err := s.Node.Devices.Refresh(); err != nil {
		return err
	}
	l, err := s.Withdraw(ctx)
	if err != nil {
		return err
	}
	for _, has := range l.Spec.Devices {
		if has.UUID == d.UUID && len(has.Slices) > 0 {
			return nil // it came first
		}
	}
	if idle, err := s.idle(d.UUID); err != nil || !idle {
		return err
	}
	library, err := s.Node.Devices.Library()
	if err != nil {
		return err
	}
	if err := library.EnableMIG(d.UUID); err != nil {
		if s.refused == nil {
			s.refused = map[string]time.Time{}
		}
		pause := switchAgain
		if errors.Is(err, device.ErrUnsupported) {
			pause = switchNever
		}
		s.refused[d.UUID] = at.Add(pause)
		s.Tell(fmt.Sprintf("LeftGPU%d", d.Index), fmt.Sprintf("GPU %d (%s) stays out of MIG mode: %v", d.Index, d.UUID, err))
		return nil
	}
	s.Tell(fmt.Sprintf("SwitchedGPU%d", d.Index), fmt.Sprintf("GPU %d (%s) was put into MIG mode, as label %s of the node says", d.Index, d.UUID, v1alpha1.LabelMIGMode))
	return nil
}
