// SPDX-License-Identifier: Apache-2.0

// Package metrics owns what the node agent shows to Prometheus: what containers
// hold and use of their slices, unlimited processes, and the agent's health.
// Counters are read while the containers run on.
//
// Everything is read when it is asked for. Use is the containers' own word, and
// nothing is decided on it.
package metrics

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/audit"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// Sources of the figures.
type Sources struct {
	// Node is the name of this node.
	Node  string
	Table *attach.ContainerTable
	Modes mode.Set
	// Devices is the latest picture; false before there was one.
	Devices func() (device.Snapshot, bool)
	// Granted is what the ledger grants of a device; false before the ledger was read.
	Granted func(uuid string) (v1alpha1.Amounts, bool)
	// Findings are the processes that no limit holds.
	Findings func() []audit.Finding
	// Held are the processes that hold a device without a slice of it, and the containers
	// of which a look does not see all.
	Held func() ([]audit.Finding, []hooks.Holder)
	// Orphans is how many containers were ended that had outlived their pods.
	Orphans func() int64
	// Use is how much of a device is in use.
	Use func(uuid string) (device.Use, error)
	// Activity is what a device did since it was asked the time before.
	Activity func(uuid string) (device.Activity, error)
	// Batch is the processor time of opportunistic containers.
	Batch func() batch.Use
	// Pressure is how long tasks of a container have waited for a CPU.
	Pressure func(pid uint32, container string) (time.Duration, error)
	// Account are the sums of the node's account; nil before it is known.
	Account func() []v1alpha1.ModelUsage
	// NVML and Runtime say why one of them is out of reach, nil when it isn't.
	NVML, Runtime func() error
	Clock         clock.PassiveClock
}

// Collector reads the sources at every scrape.
type Collector struct {
	from         Sources
	descriptions []*prometheus.Desc

	memoryLimit, memoryUsed, memoryPeak                         *prometheus.Desc
	refusals                                                    *prometheus.Desc
	computeLimit, busy, throttled, launches, slowdown           *prometheus.Desc
	processes, readable, unenforced, holding, unread            *prometheus.Desc
	deviceHealthy, instanceHealthy, nvml, runtime, containersIn *prometheus.Desc
	computeTotal, computeGranted, memoryTotal, memoryGranted    *prometheus.Desc
	batchCap, batchUsed, pressure, orphans                      *prometheus.Desc
	activity                                                    map[device.Figure]*prometheus.Desc
	accelerators                                                *accelerators
	account                                                     account
}

// New is a collector of the sources, to be registered once.
func New(from Sources) *Collector {
	var all []*prometheus.Desc
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		all = append(all, prometheus.NewDesc("vernier_"+name, help, labels, prometheus.Labels{"node": from.Node}))
		return all[len(all)-1]
	}
	slice := []string{"namespace", "pod", "container", "uuid"}
	gpu := []string{"uuid", "model"}
	c := &Collector{
		from:         from,
		memoryLimit:  desc("container_memory_limit_bytes", "Device memory of the container's slice.", slice...),
		memoryUsed:   desc("container_memory_used_bytes", "Device memory that the container's processes are charged; of a whole GPU what the driver says is in use.", slice...),
		memoryPeak:   desc("container_memory_peak_bytes", "Most device memory that the container's processes were charged at a time.", slice...),
		refusals:     desc("container_memory_refusals_total", "Allocations that were refused for want of memory in the slice (CUDA_ERROR_OUT_OF_MEMORY).", slice...),
		computeLimit: desc("container_compute_limit_ratio", "Share of the device's time that the container may use, 0.3 for gpu-core: 30; absent without a quota.", slice...),
		busy:         desc("container_device_seconds_total", "Device time that the container was charged; without a quota it counts only while a container with one is on the device. Of a whole GPU the driver's utilisation at each scrape, times the time since the scrape before.", slice...),
		throttled:    desc("container_throttled_seconds_total", "Time that the container's launches have waited for its quota, added up over threads.", slice...),
		slowdown:     desc("container_slowdown_ratio", "How much longer than at their best the container's launches take on the device: 1.5 when half as long again. The median of the time of one class of launches lately over the 5th percentile of all of its launches. Absent below 100 samples, without a quota, and when nothing was launched for a minute.", slice...),
		launches:     desc("container_launches_total", "Launches that were measured; without a quota only while a container with one is on the device.", slice...),
		processes:    desc("container_processes", "Processes of the container that use CUDA under the limiter.", slice[:3]...),
		readable:     desc("container_counters_readable", "1 if the container's counters can be read, 0 if it has damaged them, or was started by a release with others.", slice[:3]...),
		pressure:     desc("container_cpu_pressure_seconds_total", "Time in which tasks of the container have waited for a CPU, one of them at least. Absent under cgroup v1, and where the kernel has no PSI.", slice[:3]...),
		unenforced:   desc("unenforced_processes", "Processes that use a device and that no limit holds; without namespace, pod and container: in no container.", slice...),
		holding:      desc("processes_without_slice", "Processes of the container that hold a descriptor of the device, of which it has no slice.", slice...),
		unread:       desc("container_descriptors_unread", "1 for a container with more descriptors than one look for those reads: the next look goes on, and finds later what is there.", slice[:3]...),

		deviceHealthy:   desc("device_healthy", "1 if the device is fit to carry slices.", gpu...),
		computeTotal:    desc("device_compute_total_ratio", "Compute of the device: 1.", gpu...),
		computeGranted:  desc("device_compute_granted_ratio", "Compute of the device that the ledger grants, also to containers that do not run yet: 0.3 for gpu-core: 30.", gpu...),
		memoryTotal:     desc("device_memory_total_bytes", "Memory of the device.", gpu...),
		memoryGranted:   desc("device_memory_granted_bytes", "Memory of the device that the ledger grants, also to containers that do not run yet.", gpu...),
		instanceHealthy: desc("mig_instance_healthy", "1 if the instance of MIG is fit to carry a slice.", "uuid", "instance", "profile", "start"),
		nvml:            desc("node_nvml_up", "1 if the driver's library answers."),
		runtime:         desc("node_runtime_connected", "1 if the agent is connected to containerd, and containerd guards what the agent must see."),
		containersIn:    desc("node_containers", "Containers that hold slices."),
		orphans:         desc("node_orphaned_containers_ended_total", "Containers with slices that the agent has ended since it was started, because they had outlived their pods."),
		batchCap:        desc("node_opportunistic_cpu_limit_cores", "Processors that all opportunistic containers of the node may use together just now."),
		batchUsed:       desc("node_opportunistic_cpu_used_cores", "Processors that they use."),
		activity: map[device.Figure]*prometheus.Desc{
			device.SMActive:       desc("device_sm_active_ratio", "Part of the device's multiprocessors that were busy, on average since the scrape before. Like all of NVML's GPM absent before Hopper and in MIG mode.", gpu...),
			device.SMOccupancy:    desc("device_sm_occupancy_ratio", "Part of the warps that the device has room for that were there, on average since the scrape before.", gpu...),
			device.DRAMActive:     desc("device_dram_active_ratio", "Part of the bandwidth of the device's memory that was used since the scrape before.", gpu...),
			device.PCIeTransmit:   desc("device_pcie_transmit_bytes_per_second", "Bytes that the device sent over PCIe, since the scrape before.", gpu...),
			device.PCIeReceive:    desc("device_pcie_receive_bytes_per_second", "Bytes that the device received over PCIe, since the scrape before.", gpu...),
			device.NVLinkTransmit: desc("device_nvlink_transmit_bytes_per_second", "Bytes that the device sent over all of its NVLinks, since the scrape before.", gpu...),
			device.NVLinkReceive:  desc("device_nvlink_receive_bytes_per_second", "Bytes that the device received over all of its NVLinks, since the scrape before.", gpu...),
		},
		accelerators: newAccelerators(from.Node, from.Clock),
		account:      newAccount(desc),
	}
	c.descriptions = append(all, c.accelerators.total, c.accelerators.used, c.accelerators.duty)
	return c
}

// Describe sends every description.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descriptions {
		out <- d
	}
}

// Collect reads everything now.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(c.nvml, one(c.from.NVML() == nil))
	gauge(c.runtime, one(c.from.Runtime() == nil))
	now, scanned := c.from.Devices()
	if scanned {
		for _, d := range now.Devices {
			gauge(c.deviceHealthy, one(d.Healthy), d.UUID, d.Model)
			gauge(c.computeTotal, 1, d.UUID, d.Model)
			gauge(c.memoryTotal, float64(d.Mem.Bytes()), d.UUID, d.Model)
			if granted, known := c.from.Granted(d.UUID); known {
				gauge(c.computeGranted, float64(granted.Core)/float64(v1alpha1.WholeGPU), d.UUID, d.Model)
				gauge(c.memoryGranted, float64(granted.Mem.Bytes()), d.UUID, d.Model)
			}
			if activity, err := c.from.Activity(d.UUID); err == nil {
				for figure, value := range activity {
					gauge(c.activity[figure], value, d.UUID, d.Model)
				}
			}
			for _, i := range d.Instances {
				gauge(c.instanceHealthy, one(i.Reason == ""), d.UUID, i.UUID, strconv.Itoa(int(i.Profile)), strconv.Itoa(int(i.Start)))
			}
		}
	}
	c.account.send(out, c.from.Account())
	out <- prometheus.MustNewConstMetric(c.orphans, prometheus.CounterValue, float64(c.from.Orphans()))
	if use := c.from.Batch(); use.Cap > 0 {
		gauge(c.batchCap, use.Cap.Cores())
		gauge(c.batchUsed, use.Used.Cores())
	}
	unenforced := map[[4]string]int{}
	entries := c.from.Table.All()
	gauge(c.containersIn, float64(len(entries)))
	c.accelerators.forget(func(id string) bool {
		return slices.ContainsFunc(entries, func(e attach.Entry) bool { return e.ID == id })
	})
	for _, e := range newest(entries) {
		namespace, pod, _ := strings.Cut(e.Owner, "/")
		var accelerators []accelerator
		for _, g := range e.Grants {
			at := []string{namespace, pod, e.Name, g.UUID}
			unenforced[[4]string(at)] = 0
			gauge(c.memoryLimit, float64(g.Mem.Bytes()), at...)
			if g.Core > 0 {
				gauge(c.computeLimit, float64(g.Core)/float64(v1alpha1.WholeGPU), at...)
			}
			of := accelerator{id: e.ID, namespace: namespace, pod: pod, container: e.Name, uuid: g.UUID}
			if d, found := now.Device(g.UUID); found {
				of.model = d.Model
			}
			c.accelerators.send(out, c.accelerators.total, of, float64(g.Mem.Bytes()))
			accelerators = append(accelerators, of)
			if g.Mode != v1alpha1.ModeExclusive {
				continue
			}
			if use, err := c.from.Use(g.UUID); err == nil {
				gauge(c.memoryUsed, float64(use.MemoryBytes), at...)
				busy := c.accelerators.whole(out, of, use)
				out <- prometheus.MustNewConstMetric(c.busy, prometheus.CounterValue, busy.Seconds(), at...)
			}
		}
		c.usage(out, e, accelerators)
		if e.PID != 0 {
			if waited, err := c.from.Pressure(e.PID, e.ID); err == nil {
				out <- prometheus.MustNewConstMetric(c.pressure, prometheus.CounterValue, waited.Seconds(), namespace, pod, e.Name)
			}
		}
	}
	for _, f := range c.from.Findings() {
		unenforced[[4]string{f.Holder.Pod.Namespace, f.Holder.Pod.Name, f.Holder.Name, f.UUID}] += f.Processes
	}
	for at, n := range unenforced {
		gauge(c.unenforced, float64(n), at[:]...)
	}
	held, unread := c.from.Held()
	holding, cut := map[[4]string]int{}, map[[3]string]bool{}
	for _, f := range held {
		holding[[4]string{f.Holder.Pod.Namespace, f.Holder.Pod.Name, f.Holder.Name, f.UUID}] += f.Processes
	}
	for at, n := range holding {
		gauge(c.holding, float64(n), at[:]...)
	}
	for _, h := range unread {
		cut[[3]string{h.Pod.Namespace, h.Pod.Name, h.Name}] = true
	}
	for at := range cut {
		gauge(c.unread, 1, at[:]...)
	}
}

// usage sends what the container's counters say, where it has any; of are its
// grants.
func (c *Collector) usage(out chan<- prometheus.Metric, e attach.Entry, of []accelerator) {
	if len(e.Grants) == 0 {
		return
	}
	usage, err := c.from.Modes.Usage(e.Container) // an error, too, where its figures cannot be
	// Entered before it has its counters.
	if usage == nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return
	}
	namespace, pod := of[0].namespace, of[0].pod
	out <- prometheus.MustNewConstMetric(c.readable, prometheus.GaugeValue, one(err == nil), namespace, pod, e.Name)
	if err != nil {
		return
	}
	out <- prometheus.MustNewConstMetric(c.processes, prometheus.GaugeValue, float64(len(usage.Processes)), namespace, pod, e.Name)
	for i, d := range usage.Devices {
		c.deviceUsage(out, d, namespace, pod, e.Name, e.Grants[i].UUID)
		if ratio, known := usage.Slowdown(i, pace.Now()); known {
			out <- prometheus.MustNewConstMetric(c.slowdown, prometheus.GaugeValue, ratio, namespace, pod, e.Name, e.Grants[i].UUID)
		}
		c.accelerators.slice(out, of[i], d.UsedBytes, d.Busy, e.Grants[i].Core)
	}
}

func (c *Collector) deviceUsage(out chan<- prometheus.Metric, d layout.DeviceUsage, at ...string) {
	out <- prometheus.MustNewConstMetric(c.memoryUsed, prometheus.GaugeValue, float64(d.UsedBytes), at...)
	out <- prometheus.MustNewConstMetric(c.memoryPeak, prometheus.GaugeValue, float64(d.PeakBytes), at...)
	for desc, value := range map[*prometheus.Desc]float64{
		c.refusals: float64(d.MemoryRefusals), c.launches: float64(d.Launches),
		c.busy: d.Busy.Seconds(), c.throttled: d.Throttled.Seconds(),
	} {
		// A counter does not run backwards, whatever a tenant has written there.
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, max(value, 0), at...)
	}
}

// named is how a container shows in the metrics.
type named struct{ owner, container string }

// newest has one entry of every name: the end of a container that is started again
// may not have been reported yet, nor that of a pod that was deleted by force and made
// again. Two of one name would fail the scrape.
func newest(entries []attach.Entry) map[named]attach.Entry {
	all := map[named]attach.Entry{}
	for _, e := range entries {
		name := named{owner: e.Owner, container: e.Name}
		if before, found := all[name]; !found || before.Status != nil && e.Status == nil {
			all[name] = e
		}
	}
	return all
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
