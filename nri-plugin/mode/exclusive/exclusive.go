// SPDX-License-Identifier: Apache-2.0

// Package exclusive owns the mode that gives whole devices. The ledger leaves
// nothing of them to others, so nothing needs to be held inside the container.
package exclusive

import (
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// Mode is the mode. It has no state.
type Mode struct{}

// Supports needs all of a device that isn't cut up.
func (Mode) Supports(d v1alpha1.DeviceStatus, g ledger.Grant) error {
	if g.Core != v1alpha1.WholeGPU || g.Mem != g.DeviceMem {
		return fmt.Errorf("the slice is a part of the device: %w", mode.ErrRequest)
	}
	return mode.Undivided(d)
}

// Prepare has nothing to do.
func (Mode) Prepare(mode.Container) error { return nil }

// Inject gives the devices.
func (Mode) Inject(c mode.Container, adjust *api.ContainerAdjustment) error {
	mode.InjectDevices(c, adjust)
	return nil
}

// Apply has nothing to set: having no neighbour is the guarantee.
func (m Mode) Apply(c mode.Container, pid uint32) ([]v1alpha1.SliceStatus, error) {
	return m.Observe(c, pid), nil
}

// Observe is the same for every container.
func (Mode) Observe(c mode.Container, _ uint32) []v1alpha1.SliceStatus {
	all := make([]v1alpha1.SliceStatus, 0, len(c.Grants))
	for _, g := range c.Grants {
		s := mode.Status(c, g)
		s.Memory, s.Compute = v1alpha1.GuaranteeDevice, v1alpha1.GuaranteeDevice
		all = append(all, s)
	}
	return all
}

// Recall knows only what the ledger's status said. The amounts are the device's,
// so they are not needed.
func (Mode) Recall(c mode.Container, said []v1alpha1.SliceStatus) []ledger.Grant {
	var grants []ledger.Grant
	for _, s := range said {
		if s.Pod == c.Pod && s.Container == c.ID && s.Mode == v1alpha1.ModeExclusive {
			grants = append(grants, mode.Recalled(s.UUID, v1alpha1.WholeGPU, 0, s.Mode))
		}
	}
	return grants
}

// Ended leaves nothing to make ready.
func (Mode) Ended(mode.Container) error { return nil }

// Release has nothing to remove.
func (Mode) Release(types.UID) error { return nil }
