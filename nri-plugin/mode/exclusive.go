// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// Exclusive gives whole devices. The ledger leaves nothing of them to others, so
// nothing needs to be held inside the container.
type Exclusive struct{}

// Prepare has nothing to do.
func (Exclusive) Prepare(Container) error { return nil }

// Inject gives the devices.
func (Exclusive) Inject(c Container, adjust *api.ContainerAdjustment) error {
	injectDevices(c, adjust)
	return nil
}

// Apply has nothing to set: having no neighbour is the guarantee.
func (e Exclusive) Apply(c Container, pid uint32) ([]v1alpha1.SliceStatus, error) {
	return e.Observe(c, pid), nil
}

// Observe is the same for every container.
func (Exclusive) Observe(c Container, _ uint32) []v1alpha1.SliceStatus {
	all := make([]v1alpha1.SliceStatus, 0, len(c.Grants))
	for _, g := range c.Grants {
		s := status(c, g)
		s.Memory, s.Compute = v1alpha1.GuaranteeDevice, v1alpha1.GuaranteeDevice
		all = append(all, s)
	}
	return all
}

// Recall knows only what the ledger's status said. The amounts are the device's,
// so they are not needed.
func (Exclusive) Recall(c Container, said []v1alpha1.SliceStatus) []ledger.Grant {
	var grants []ledger.Grant
	for _, s := range said {
		if s.Pod == c.Pod && s.Container == c.ID && s.Mode == v1alpha1.ModeExclusive {
			grants = append(grants, recalled(s.UUID, v1alpha1.WholeGPU, 0, s.Mode))
		}
	}
	return grants
}

// Ended leaves nothing to make ready.
func (Exclusive) Ended(Container) error { return nil }

// Release has nothing to remove.
func (Exclusive) Release(types.UID) error { return nil }
