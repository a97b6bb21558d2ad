// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/allocator"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/audit"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/metrics"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
	"vernier.dev/vernier/webhook/conditions"
)

// collectors are what a part registers.
func collectors(part string) ([]prometheus.Collector, error) {
	switch part {
	case "node":
		c, err := nodeCollector()
		return []prometheus.Collector{c}, err
	case "webhook":
		return []prometheus.Collector{conditions.Collector()}, nil
	case "allocator":
		global, ok := registry.Registry.(prometheus.Collector)
		if !ok {
			return nil, fmt.Errorf("the registry cannot be listed")
		}
		a := allocator.New(allocator.Config{Clock: clock.RealClock{}, IdleAfter: time.Minute})
		a.SetLedger(&v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{Slices: []v1alpha1.Slice{{Owner: "namespace/pod"}}}}}, Status: v1alpha1.SliceLedgerStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAgentReachable}}, Devices: make([]v1alpha1.DeviceStatus, 1), Slices: []v1alpha1.SliceStatus{{InForce: &v1alpha1.Amounts{Core: 1}, IdleSince: &metav1.Time{}}}}})
		return []prometheus.Collector{global, a.Collector()}, nil
	}
	return nil, fmt.Errorf("no part %q", part)
}

// described is how a description prints, the only way in which it can be read.
var described = regexp.MustCompile(`^Desc{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), .*variableLabels: {(.*)}}$`)

// ours are the metrics that Vernier has named.
var ours = regexp.MustCompile(`^(vernier|container_accelerator)_`)

// told has what a part describes to Prometheus. The type it learns from a metric of
// that name; one that has no series before something happens is a counter.
func told(of []string) (table, error) {
	t := table{head: []string{"metric", "type", "labels", "meaning"}}
	if len(of) != 1 {
		return t, fmt.Errorf("name one part")
	}
	all, err := collectors(of[0])
	if err != nil {
		return t, err
	}
	kinds := map[string]string{}
	series := drain(func(c chan prometheus.Metric) {
		for _, of := range all {
			of.Collect(c)
		}
	})
	for _, m := range series {
		var text dto.Metric
		if err := m.Write(&text); err != nil {
			return t, err
		}
		kinds[m.Desc().String()] = kindOf(&text)
	}
	for _, d := range drain(func(c chan *prometheus.Desc) {
		for _, of := range all {
			of.Describe(c)
		}
	}) {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			return t, fmt.Errorf("a description prints otherwise: %s", d)
		}
		name, err1 := strconv.Unquote(m[1])
		help, err2 := strconv.Unquote(m[2])
		if err1 != nil || err2 != nil {
			return t, fmt.Errorf("a description prints otherwise: %s", d)
		}
		// The registry that is listed is one for all parts that register with it.
		if !ours.MatchString(name) || strings.HasPrefix(name, "vernier_webhook_") != (of[0] == "webhook") {
			continue
		}
		kind := kinds[d.String()]
		if kind == "" && strings.HasSuffix(name, "_total") {
			kind = "counter"
		}
		if kind == "" {
			return t, fmt.Errorf("%s has no series here: give it one", name)
		}
		labels := ""
		if m[3] != "" {
			labels = code(strings.Split(m[3], ",")...)
		}
		t.add(code(name), kind, labels, help)
	}
	slices.SortFunc(t.rows, slices.Compare)
	return t, nil
}

// drain takes all that is sent.
func drain[T any](send func(chan T)) (all []T) {
	c := make(chan T)
	go func() {
		send(c)
		close(c)
	}()
	for one := range c {
		all = append(all, one)
	}
	return all
}

func kindOf(m *dto.Metric) string {
	switch {
	case m.Counter != nil:
		return "counter"
	case m.Histogram != nil:
		return "histogram"
	}
	return "gauge"
}

// nodeCollector is an agent's, on a node where everything is to be told.
func nodeCollector() (prometheus.Collector, error) {
	table := &attach.ContainerTable{}
	for i, m := range []v1alpha1.Mode{v1alpha1.ModeLimiter, v1alpha1.ModeExclusive} {
		uuid := fmt.Sprintf("GPU-%d", i)
		err := table.Attach(attach.Entry{Prepared: true, Container: mode.Container{Pod: "uid", Owner: "namespace/pod", Name: uuid, ID: uuid,
			Grants: []ledger.Grant{{UUID: uuid, Mode: m, Core: 30, Mem: 1, DeviceMem: 1}}}})
		if err != nil {
			return nil, err
		}
	}
	return metrics.New(metrics.Sources{
		Node: "node", Table: table, Modes: mode.Set{v1alpha1.ModeLimiter: counting{}, v1alpha1.ModeExclusive: counting{}},
		Devices: func() (device.Snapshot, bool) {
			return device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: "GPU-0", Healthy: true, Instances: make([]v1alpha1.MIGInstance, 1)}}}, true
		},
		Granted:  func(string) (v1alpha1.Amounts, bool) { return v1alpha1.Amounts{}, true },
		Findings: func() []audit.Finding { return nil },
		Orphans:  func() int64 { return 0 },
		Held:     func() ([]audit.Finding, []hooks.Holder) { return make([]audit.Finding, 1), make([]hooks.Holder, 1) },
		Use:      func(string) (device.Use, error) { return device.Use{}, nil },
		Activity: func(string) (device.Activity, error) {
			return device.Activity{device.SMActive: 0, device.SMOccupancy: 0, device.DRAMActive: 0, device.PCIeTransmit: 0,
				device.PCIeReceive: 0, device.NVLinkTransmit: 0, device.NVLinkReceive: 0}, nil
		},
		Account: func() []v1alpha1.ModelUsage {
			return []v1alpha1.ModelUsage{{Granted: []v1alpha1.NamespaceUsage{{UsedMilliseconds: new(int64)}}}}
		},
		Batch: func() batch.Use { return batch.Use{Cap: 1} },
		NVML:  func() error { return nil }, Runtime: func() error { return nil }, Clock: clock.RealClock{},
	}), nil
}

// counting is a mode whose containers have counters.
type counting struct{ mode.Mode }

func (counting) Usage(mode.Container) (*layout.Usage, error) {
	return &layout.Usage{
		Devices:   make([]layout.DeviceUsage, 1),
		Processes: []layout.ProcessUsage{{Slowdowns: []layout.Slowdown{{Ratio: 1, Part: 1, At: pace.Now()}}}},
	}, nil
}
