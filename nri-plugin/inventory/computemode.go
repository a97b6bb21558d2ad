// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/nri-plugin/device"
)

// ComputeMode asks who may have contexts on the device.
func (inv *Inventory) ComputeMode(uuid string) (device.ComputeMode, error) {
	u, err := inv.unit(uuid)
	if err != nil {
		return 0, err
	}
	now, r := u.handle.GetComputeMode()
	return device.ComputeMode(now), unsupported(r)
}

// SetComputeMode says who may; it needs root.
func (inv *Inventory) SetComputeMode(uuid string, want device.ComputeMode) error {
	u, err := inv.unit(uuid)
	if err != nil {
		return err
	}
	return unsupported(u.handle.SetComputeMode(nvml.ComputeMode(want)))
}
