// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
)

// Use reads how much of a device is in use, by all processes.
func (inv *Inventory) Use(uuid string) (device.Use, error) {
	u, err := inv.unit(uuid)
	if err != nil {
		return device.Use{}, err
	}
	_, used, r := inv.memory(u.handle)
	if r != nvml.SUCCESS {
		return device.Use{}, fmt.Errorf("reading the memory of device %s: %w", uuid, r)
	}
	rates, r := u.handle.GetUtilizationRates()
	if r != nvml.SUCCESS {
		return device.Use{}, fmt.Errorf("reading the utilisation of device %s: %w", uuid, r)
	}
	return device.Use{MemoryBytes: used, Busy: v1alpha1.Percent(rates.Gpu)}, nil
}
