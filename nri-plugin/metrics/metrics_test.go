// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/audit"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/exclusive"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-1111-1111-1111-111111111111"
)

// counting is the limiter, with counters that the test sets.
type counting struct {
	mode.Mode
	usage *layout.Usage
	err   error
}

func (c *counting) Usage(mode.Container) (*layout.Usage, error) { return c.usage, c.err }

func entry(t *testing.T, table *attach.ContainerTable, id, owner, name string, m v1alpha1.Mode, grants ...ledger.Grant) {
	t.Helper()
	for i := range grants {
		grants[i].Mode, grants[i].DeviceMem = m, 1<<20
	}
	must.Do(t, table.Attach(attach.Entry{Prepared: true, Container: mode.Container{Pod: "uid", Owner: owner, Name: name, ID: id, Grants: grants}}))
}

// text is what Prometheus reads, one line for each figure: metric{label values}
// value, without the node.
func text(t *testing.T, from Sources) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(New(from))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d: %s", answer.Code, answer.Body)
	}
	var lines []string
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if !strings.Contains(line, `node="n1"`) {
			t.Errorf("no node: %s", line)
		}
		line = nodeLabel.ReplaceAllString(line, "")
		lines = append(lines, strings.TrimSpace(label.ReplaceAllString(line, "$1")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var (
	nodeLabel = regexp.MustCompile(`node="n1",?`)
	label     = regexp.MustCompile(`[a-z_]+="([^"]*)"`)
)

func sources(table *attach.ContainerTable, limiter mode.Mode) Sources {
	return Sources{
		Node: "n1", Table: table,
		Modes:    mode.Set{v1alpha1.ModeLimiter: limiter, v1alpha1.ModeExclusive: exclusive.Mode{}},
		Devices:  func() (device.Snapshot, bool) { return device.Snapshot{}, false },
		Granted:  func(string) (v1alpha1.Amounts, bool) { return v1alpha1.Amounts{}, false },
		Findings: func() []audit.Finding { return nil },
		Held:     func() ([]audit.Finding, []hooks.Holder) { return nil, nil },
		Orphans:  func() int64 { return 3 },
		Use:      func(string) (device.Use, error) { return device.Use{MemoryBytes: 2048, Busy: 42}, nil },
		Activity: func(string) (device.Activity, error) { return nil, device.ErrUnsupported },
		NVML:     func() error { return nil }, Runtime: func() error { return nil },
		Account:  func() []v1alpha1.ModelUsage { return nil },
		Batch:    func() batch.Use { return batch.Use{} },
		Pressure: func(uint32, string) (time.Duration, error) { return 0, errors.New("cgroup v1") },
		Clock:    clock.RealClock{},
	}
}

// Labels are in alphabetical order: container, namespace, pod, uuid.
func TestFigures(t *testing.T) {
	table := &attach.ContainerTable{}
	entry(t, table, "1", "team/a", "main", v1alpha1.ModeLimiter, ledger.Grant{UUID: gpu0, Core: 30, Mem: 1}, ledger.Grant{UUID: gpu1, Mem: 2})
	entry(t, table, "2", "team/b", "whole", v1alpha1.ModeExclusive, ledger.Grant{UUID: "GPU-2", Core: 100, Mem: 4})
	from := sources(table, &counting{usage: &layout.Usage{
		Devices: []layout.DeviceUsage{
			{UsedBytes: 4096, PeakBytes: 8192, MemoryRefusals: 5, Busy: 1500e6, Throttled: -1, Launches: 7},
			{},
		},
		Processes: []layout.ProcessUsage{{Slowdowns: []layout.Slowdown{{Ratio: 1.5, Part: 0.5, At: pace.Now()}, {Ratio: 2, Part: 0.1}}}, {}},
	}})
	from.Devices = func() (device.Snapshot, bool) {
		return device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: gpu0, Model: "A100", Healthy: true, Mem: 4}, {UUID: gpu1, Model: "T4", Instances: []v1alpha1.MIGInstance{
			{MIGPlace: v1alpha1.MIGPlace{Profile: 19, Start: 6}, UUID: "MIG-0"},
			{MIGPlace: v1alpha1.MIGPlace{Profile: 14, Start: 2}, UUID: "MIG-1", Reason: "Xid 94"},
		}}}}, true
	}
	index := ledger.NewIndex(&v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: gpu0, Slices: []v1alpha1.Slice{
		{Pod: "a", Ctr: "init", Core: 40, Mem: 3, ReuseCore: 30, ReuseMem: 1}, {Pod: "a", Ctr: "main", Core: 30, Mem: 1},
	}}}}})
	from.Granted = func(uuid string) (v1alpha1.Amounts, bool) { return index.Granted(uuid), true }
	from.Findings = func() []audit.Finding {
		return []audit.Finding{
			{Holder: hooks.Holder{Pod: hooks.PodRef{Namespace: "team", Name: "a"}, Name: "main"}, UUID: gpu0, Processes: 2},
			{Holder: hooks.Holder{Pod: hooks.PodRef{Namespace: "other", Name: "c"}, Name: "main"}, UUID: gpu1, Processes: 1},
			{UUID: gpu1, Processes: 3},
		}
	}
	from.Held = func() ([]audit.Finding, []hooks.Holder) {
		// The one that was, and the one that is: two of a name are one series.
		c := hooks.Holder{Pod: hooks.PodRef{Namespace: "other", Name: "c"}, Name: "main"}
		return []audit.Finding{{Holder: c, UUID: gpu0, Processes: 1}, {Holder: c, UUID: gpu0, Processes: 2}}, []hooks.Holder{c, c}
	}
	from.Activity = func(uuid string) (device.Activity, error) {
		if uuid == gpu1 {
			return nil, device.ErrUnsupported
		}
		return device.Activity{device.SMActive: 0.9, device.SMOccupancy: 0.1, device.DRAMActive: 0.2, device.PCIeTransmit: 1, device.PCIeReceive: 2, device.NVLinkReceive: 0}, nil
	}
	from.Runtime = func() error { return errors.New("away") }
	from.Batch = func() batch.Use { return batch.Use{Containers: 1, Cap: 2500, Used: 700} }
	want := `container_accelerator_duty_cycle{GPU-2,whole,nvidia,,team,b} 42
container_accelerator_memory_total_bytes{GPU-0,main,nvidia,A100,team,a} 1.048576e+06
container_accelerator_memory_total_bytes{GPU-1,main,nvidia,T4,team,a} 2.097152e+06
container_accelerator_memory_total_bytes{GPU-2,whole,nvidia,,team,b} 4.194304e+06
container_accelerator_memory_used_bytes{GPU-0,main,nvidia,A100,team,a} 4096
container_accelerator_memory_used_bytes{GPU-1,main,nvidia,T4,team,a} 0
container_accelerator_memory_used_bytes{GPU-2,whole,nvidia,,team,b} 2048
vernier_container_compute_limit_ratio{main,team,a,GPU-0} 0.3
vernier_container_compute_limit_ratio{whole,team,b,GPU-2} 1
vernier_container_counters_readable{main,team,a} 1
vernier_container_descriptors_unread{main,other,c} 1
vernier_container_device_seconds_total{main,team,a,GPU-0} 1.5
vernier_container_device_seconds_total{main,team,a,GPU-1} 0
vernier_container_device_seconds_total{whole,team,b,GPU-2} 0
vernier_container_launches_total{main,team,a,GPU-0} 7
vernier_container_launches_total{main,team,a,GPU-1} 0
vernier_container_memory_limit_bytes{main,team,a,GPU-0} 1.048576e+06
vernier_container_memory_limit_bytes{main,team,a,GPU-1} 2.097152e+06
vernier_container_memory_limit_bytes{whole,team,b,GPU-2} 4.194304e+06
vernier_container_memory_peak_bytes{main,team,a,GPU-0} 8192
vernier_container_memory_peak_bytes{main,team,a,GPU-1} 0
vernier_container_memory_refusals_total{main,team,a,GPU-0} 5
vernier_container_memory_refusals_total{main,team,a,GPU-1} 0
vernier_container_memory_used_bytes{main,team,a,GPU-0} 4096
vernier_container_memory_used_bytes{main,team,a,GPU-1} 0
vernier_container_memory_used_bytes{whole,team,b,GPU-2} 2048
vernier_container_processes{main,team,a} 2
vernier_container_slowdown_ratio{main,team,a,GPU-0} 1.5
vernier_container_throttled_seconds_total{main,team,a,GPU-0} 0
vernier_container_throttled_seconds_total{main,team,a,GPU-1} 0
vernier_device_compute_granted_ratio{A100,GPU-0} 0.4
vernier_device_compute_granted_ratio{T4,GPU-1} 0
vernier_device_compute_total_ratio{A100,GPU-0} 1
vernier_device_compute_total_ratio{T4,GPU-1} 1
vernier_device_dram_active_ratio{A100,GPU-0} 0.2
vernier_device_healthy{A100,GPU-0} 1
vernier_device_healthy{T4,GPU-1} 0
vernier_device_memory_granted_bytes{A100,GPU-0} 3.145728e+06
vernier_device_memory_granted_bytes{T4,GPU-1} 0
vernier_device_memory_total_bytes{A100,GPU-0} 4.194304e+06
vernier_device_memory_total_bytes{T4,GPU-1} 0
vernier_device_nvlink_receive_bytes_per_second{A100,GPU-0} 0
vernier_device_pcie_receive_bytes_per_second{A100,GPU-0} 2
vernier_device_pcie_transmit_bytes_per_second{A100,GPU-0} 1
vernier_device_sm_active_ratio{A100,GPU-0} 0.9
vernier_device_sm_occupancy_ratio{A100,GPU-0} 0.1
vernier_mig_instance_healthy{MIG-0,19,6,GPU-1} 1
vernier_mig_instance_healthy{MIG-1,14,2,GPU-1} 0
vernier_node_containers{} 2
vernier_node_nvml_up{} 1
vernier_node_opportunistic_cpu_limit_cores{} 2.5
vernier_node_opportunistic_cpu_used_cores{} 0.7
vernier_node_orphaned_containers_ended_total{} 3
vernier_node_runtime_connected{} 0
vernier_processes_without_slice{main,other,c,GPU-0} 3
vernier_unenforced_processes{,,,GPU-1} 3
vernier_unenforced_processes{main,other,c,GPU-1} 1
vernier_unenforced_processes{main,team,a,GPU-0} 2
vernier_unenforced_processes{main,team,a,GPU-1} 0
vernier_unenforced_processes{whole,team,b,GPU-2} 0`
	got := strings.NewReplacer(gpu0, "GPU-0", gpu1, "GPU-1").Replace(text(t, from))
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func unaligned([]v1alpha1.SliceStatus, cpuset.CPUSet) {}

// How long a container waited for a CPU shows once it has a process, and where that is known.
func TestPressure(t *testing.T) {
	table := &attach.ContainerTable{}
	for _, id := range []string{"1", "2", "3"} {
		entry(t, table, id, "team/"+id, "main", v1alpha1.ModeLimiter, ledger.Grant{UUID: gpu0, Core: 10, Mem: 1})
	}
	table.Started("1", 11, []v1alpha1.SliceStatus{}, unaligned)
	table.Started("2", 12, []v1alpha1.SliceStatus{}, unaligned)
	from := sources(table, &counting{})
	from.Pressure = func(pid uint32, id string) (time.Duration, error) {
		if pid == 11 && id == "1" {
			return 1500 * time.Millisecond, nil
		}
		return 0, errors.New("no PSI")
	}
	got := text(t, from)
	if strings.Count(got, "pressure") != 1 || !strings.Contains(got, "vernier_container_cpu_pressure_seconds_total{main,team,1} 1.5") {
		t.Errorf("of container 1 alone it is known:\n%s", got)
	}
}

// What a container does to its counters costs it its own figures and nobody else
// theirs; nor do two containers of one name, as after a restart.
func TestScrapeDoesNotFail(t *testing.T) {
	table := &attach.ContainerTable{}
	for _, id := range []string{"1", "2"} {
		entry(t, table, id, "team/a", "main", v1alpha1.ModeLimiter, ledger.Grant{UUID: gpu0, Core: 30, Mem: 1})
	}
	table.Started("1", 0, []v1alpha1.SliceStatus{}, unaligned)
	got := text(t, sources(table, &counting{err: errors.New("damaged")}))
	for _, want := range []string{"counters_readable{main,team,a} 0", "memory_limit_bytes{main,team,a," + gpu0 + "} 1.048576e+06"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("want %q once:\n%s", want, got)
		}
	}
	if strings.Contains(got, "used_bytes") {
		t.Errorf("use that nobody has said:\n%s", got)
	}
}
