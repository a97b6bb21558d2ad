// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/vgpu-limiter/utilization"
)

// Of GPM, NVML's performance monitoring. Devices from Hopper on have it.
const (
	symbolGPMSupport = "nvmlGpmQueryDeviceSupport"
	symbolGPMAlloc   = "nvmlGpmSampleAlloc"
	symbolGPMSample  = "nvmlGpmSampleGet"
	symbolGPMMetrics = "nvmlGpmMetricsGet"
)

// shortestWindow is the least time over which activity is taken: a reader that comes
// sooner after another one gets the figures of that one.
const shortestWindow = time.Second

// What one of NVML's units is in ours: percent become ratios, MiB/s bytes per second.
const percent, mibPerSecond = 0.01, 1 << 20

// gpmMetrics are the figures that are asked for.
var gpmMetrics = []struct {
	number nvml.GpmMetricId
	figure device.Figure
	unit   float64
}{
	{nvml.GPM_METRIC_SM_UTIL, device.SMActive, percent},
	{nvml.GPM_METRIC_SM_OCCUPANCY, device.SMOccupancy, percent},
	{nvml.GPM_METRIC_DRAM_BW_UTIL, device.DRAMActive, percent},
	{nvml.GPM_METRIC_PCIE_TX_PER_SEC, device.PCIeTransmit, mibPerSecond},
	{nvml.GPM_METRIC_PCIE_RX_PER_SEC, device.PCIeReceive, mibPerSecond},
	{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, device.NVLinkTransmit, mibPerSecond},
	{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, device.NVLinkReceive, mibPerSecond},
}

// window is a device's activity since its newest sample.
type window struct {
	newest, spare nvml.GpmSample
	at            time.Time // of the newest; zero before the first
	last          device.Activity
}

// Activity is what the device did since it was asked the time before. It takes a sample
// (0.1 ms on an H100) and compares it with the one before (1.5 to 8 ms). A device in MIG
// mode has no activity as a whole.
func (inv *Inventory) Activity(uuid string) (device.Activity, error) {
	u, err := inv.unit(uuid)
	if err != nil {
		return nil, err
	}
	for _, s := range []string{symbolGPMSupport, symbolGPMAlloc, symbolGPMSample, symbolGPMMetrics} {
		if !inv.symbols[s] {
			return nil, device.ErrUnsupported
		}
	}
	inv.gpm.Lock()
	defer inv.gpm.Unlock()
	w := inv.windows[uuid]
	if inv.mig(u) == v1alpha1.MIGEnabled {
		if w != nil {
			w.at, w.last = time.Time{}, nil
		}
		return nil, device.ErrUnsupported
	}
	if w == nil {
		if w, err = inv.openWindow(u); err != nil {
			return nil, err
		}
		inv.windows[uuid] = w
	}
	if inv.now().Sub(w.at) < shortestWindow {
		return w.last, nil
	}
	if err := inv.step(u, w); err != nil {
		w.at, w.last = time.Time{}, nil // the next one begins again
		return nil, fmt.Errorf("reading the activity of device %s: %w", uuid, err)
	}
	return w.last, nil
}

func (inv *Inventory) openWindow(u *unit) (*window, error) {
	support, r := u.handle.GpmQueryDeviceSupport()
	if err := unsupported(r); err != nil {
		return nil, err
	}
	if support.IsSupportedDevice == 0 {
		return nil, device.ErrUnsupported
	}
	var samples [2]nvml.GpmSample
	for i := range samples {
		if samples[i], r = inv.lib.GpmSampleAlloc(); r != nvml.SUCCESS {
			return nil, r
		}
	}
	return &window{newest: samples[0], spare: samples[1]}, nil
}

// step takes a sample, and the activity since the one before where there is one.
func (inv *Inventory) step(u *unit, w *window) error {
	if r := u.handle.GpmSampleGet(w.spare); r != nvml.SUCCESS {
		return r
	}
	first := w.at.IsZero()
	w.newest, w.spare, w.at, w.last = w.spare, w.newest, inv.now(), nil
	if first {
		return nil
	}
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(gpmMetrics)), Sample1: w.spare, Sample2: w.newest}
	for i, m := range gpmMetrics {
		get.Metrics[i].MetricId = uint32(m.number)
	}
	if r := inv.lib.GpmMetricsGet(&get); r != nvml.SUCCESS {
		return r
	}
	w.last = device.Activity{}
	for i, m := range gpmMetrics {
		// One that the device doesn't have is left out: NVLink where there is none.
		if v := get.Metrics[i].Value; nvml.Return(get.Metrics[i].NvmlReturn) == nvml.SUCCESS && v >= 0 && !math.IsInf(v, 0) {
			w.last[m.figure] = v * m.unit
			if m.unit == percent {
				w.last[m.figure] = min(v*m.unit, 1)
			}
		}
	}
	return nil
}

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
