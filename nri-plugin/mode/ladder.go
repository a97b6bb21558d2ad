// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// Ladder is the modes that others are weaker than, the strongest first. The limiter
// and MPS stand side by side below it: neither holds more than the other.
var Ladder = []v1alpha1.Mode{v1alpha1.ModeExclusive, v1alpha1.ModeMIG}

// ErrRequest is wrapped by Supports where it is the request itself that rules a mode
// out. It needs no report.
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
				Note(&all[i], fmt.Sprintf("not %s: annotation %s asks for %s", stronger, v1alpha1.AnnotationMode, all[i].Mode))
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
