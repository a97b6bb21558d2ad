// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/vgpu-limiter/utilization"
)

// Processes lists who has a context on a device. CUDA's, Vulkan's and OpenGL's
// (which the limiter does not see at all), and clients of an MPS server have each
// a list of their own.
func (inv *Inventory) Processes(uuid string) ([]int, error) {
	u, err := inv.unit(uuid)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, list := range []struct {
		symbol string
		get    func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{symbolCompute, u.handle.GetComputeRunningProcesses},
		{symbolGraphics, u.handle.GetGraphicsRunningProcesses},
		{symbolMPS, u.handle.GetMPSComputeRunningProcesses},
	} {
		if !inv.symbols[list.symbol] {
			continue
		}
		infos, r := list.get()
		if r == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if r != nvml.SUCCESS {
			return nil, fmt.Errorf("listing the processes of device %s: %w", uuid, r)
		}
		for _, i := range infos {
			pids = append(pids, int(i.Pid))
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Utilization is how busy each process keeps a device.
func (inv *Inventory) Utilization(uuid string, since uint64) (map[int]int, uint64, error) {
	u, err := inv.unit(uuid)
	if err != nil {
		return nil, since, err
	}
	if !inv.symbols[utilization.Symbol] {
		return nil, since, fmt.Errorf("%w: %s", device.ErrUnsupported, utilization.Symbol)
	}
	return utilization.OfProcesses(u.handle, since)
}
