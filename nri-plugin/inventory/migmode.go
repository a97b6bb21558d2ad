// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/nri-plugin/device"
)

// EnableMIG puts a device into MIG mode. Before Hopper that takes a reset of the GPU, and
// whether an unknown generation needs one this library does not know either.
func (inv *Inventory) EnableMIG(uuid string) error {
	u, err := inv.unit(uuid)
	if err != nil {
		return err
	}
	if !inv.symbols[symbolMIG] || !inv.symbols[symbolSetMIG] || !inv.symbols[symbolArch] {
		return fmt.Errorf("the driver cannot switch it: %w", device.ErrUnsupported)
	}
	switch arch, r := u.handle.GetArchitecture(); {
	case r != nvml.SUCCESS:
		return fmt.Errorf("asking for its generation: %w", r)
	case arch == nvml.DEVICE_ARCH_UNKNOWN || arch < nvml.DEVICE_ARCH_HOPPER:
		return fmt.Errorf("a GPU before Hopper takes a reset to change its MIG mode; do that while the node is drained (nvidia-smi -mig 1): %w", device.ErrUnsupported)
	}
	status, r := u.handle.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	now, _, read := u.handle.GetMigMode()
	if r == nvml.SUCCESS && status == nvml.SUCCESS && read == nvml.SUCCESS && now == nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	// What stays pending would come at the next reset, whatever is on the device then.
	failed := []error{r, status, read}
	if _, r := u.handle.SetMigMode(nvml.DEVICE_MIG_DISABLE); r != nvml.SUCCESS {
		failed = append(failed, fmt.Errorf("taking it back: %w", r))
	}
	for i, e := range failed {
		if e == error(nvml.SUCCESS) {
			failed[i] = nil
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("the driver does not switch it now: %w", err)
	}
	return errors.New("the driver does not switch it now, and does not say why")
}

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
