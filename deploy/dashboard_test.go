// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/allocator"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/audit"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/metrics"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/exclusive"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// dashboard is what is read of dashboard.json.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ RefID, Expr string }
	}
	Templating struct {
		List []struct{ Name, Query string }
	}
}

// scrapeEvery is the interval of the scrapes, of which there are so many. Queries are evaluated
// between the last two, so that no edge of a range matters.
const (
	scrapeEvery = 30 * time.Second
	scrapes     = 65
)

// load is what a container of a node holds and does.
type load struct {
	pod   *corev1.Pod
	gpu   int
	mode  v1alpha1.Mode
	grant v1alpha1.Amounts
	// each is what every interval between two scrapes adds to its counters.
	each layout.DeviceUsage
}

// fixed is the limiter's mode: a container's counters are those of its load.
type fixed struct {
	mode.Mode
	loads []load
	past  *int64
}

func (f fixed) Usage(c mode.Container) (*layout.Usage, error) {
	l := f.loads[slices.IndexFunc(f.loads, func(l load) bool { return l.pod.UID == c.Pod })]
	n := *f.past
	usage := &layout.Usage{
		Devices: []layout.DeviceUsage{{
			UsedBytes: l.each.UsedBytes, Busy: time.Duration(n) * l.each.Busy, Throttled: time.Duration(n) * l.each.Throttled,
			MemoryRefusals: uint64(n) * l.each.MemoryRefusals,
		}},
		Processes: []layout.ProcessUsage{{}},
	}
	if l.grant.Core > 0 {
		usage.Processes[0].Slowdowns = []layout.Slowdown{{Ratio: 1.5, Part: 1, At: pace.Now()}}
	}
	return usage, nil
}

// agentOf is the collector of an agent on the ledger's node, where containers have loads.
func agentOf(t *testing.T, l *v1alpha1.SliceLedger, now clock.PassiveClock, past *int64, loads ...load) *metrics.Collector {
	t.Helper()
	table := &attach.ContainerTable{}
	for _, of := range loads {
		c := mode.Container{Pod: of.pod.UID, Owner: of.pod.Namespace + "/" + of.pod.Name, Name: "c", ID: of.pod.Name, Grants: []ledger.Grant{{
			UUID: l.Status.Devices[of.gpu].UUID, Mode: of.mode, Core: of.grant.Core, Mem: of.grant.Mem, DeviceMem: objects.DeviceMiB}}}
		must.Do(t, table.Attach(attach.Entry{Prepared: true, Container: c, PID: 1}))
	}
	index := ledger.NewIndex(l)
	return metrics.New(metrics.Sources{
		Account: func() []v1alpha1.ModelUsage { return nil },
		Node:    l.Name, Table: table, Clock: now,
		Modes:    mode.Set{v1alpha1.ModeLimiter: fixed{loads: loads, past: past}, v1alpha1.ModeExclusive: exclusive.Mode{}},
		Devices:  func() (device.Snapshot, bool) { return device.Snapshot{Devices: l.Status.Devices}, true },
		Granted:  func(uuid string) (v1alpha1.Amounts, bool) { return index.Granted(uuid), true },
		Findings: func() []audit.Finding { return []audit.Finding{{UUID: l.Status.Devices[0].UUID, Processes: 2}} },
		Held:     func() ([]audit.Finding, []hooks.Holder) { return nil, nil },
		Orphans:  func() int64 { return 0 },
		Use:      func(string) (device.Use, error) { return device.Use{MemoryBytes: 500 << 20, Busy: 50}, nil },
		Activity: func(string) (device.Activity, error) {
			return device.Activity{device.SMActive: 0.75, device.DRAMActive: 0.25, device.PCIeTransmit: 1, device.PCIeReceive: 2,
				device.NVLinkTransmit: 3, device.NVLinkReceive: 4}, nil
		},
		NVML: func() error { return nil }, Runtime: func() error { return nil },
		Batch: func() batch.Use { return batch.Use{} },
		Pressure: func(uint32, string) (time.Duration, error) {
			return time.Duration(*past) * scrapeEvery / 2, nil
		},
	})
}

// recorded is what Prometheus would have scraped: values by series, one for each time.
type recorded map[string][]string

func (r recorded) scrape(t *testing.T, n int, from prometheus.Gatherer) {
	t.Helper()
	var text bytes.Buffer
	for _, family := range must.Get(from.Gather())(t) {
		if strings.HasPrefix(family.GetName(), "vernier_") {
			must.Get(expfmt.MetricFamilyToText(&text, family))(t)
		}
	}
	for lines := bufio.NewScanner(&text); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value := must.Get(strconv.ParseFloat(line[at+1:], 64))(t)
		if r[line[:at]] == nil {
			r[line[:at]] = slices.Repeat([]string{"_"}, scrapes)
		}
		r[line[:at]][n] = strconv.FormatFloat(value, 'f', -1, 64)
	}
}

// figures are the values that a query finds, by labels.
type figures map[string]float64

// Beside known loads, as the parts' own collectors tell them, Prometheus' own engine finds in
// each panel of the dashboard what is true: half of a GPU, a whole one, one without a quota.
func TestDashboardFigures(t *testing.T) {
	n, m := objects.ReadyLedger("n"), objects.ReadyLedger("m")
	n.Status.Devices[1].Model = "A100"
	m.Status.Devices[0].Healthy = false
	running := func(name string, gpu int, core v1alpha1.Percent, mem v1alpha1.MiB) *corev1.Pod {
		p := objects.Single(name, objects.Share(core, mem), objects.InNamespace("team"))
		objects.Place(p, n, map[string]int{"c": gpu})
		objects.Grant(n, p, map[string]int{"c": gpu})
		p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning
		return p
	}
	past := int64(0)
	now := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	loads := []load{
		{running("half", 0, 50, 400), 0, v1alpha1.ModeLimiter, v1alpha1.Amounts{Core: 50, Mem: 400},
			layout.DeviceUsage{UsedBytes: 100 << 20, Busy: scrapeEvery / 4, Throttled: scrapeEvery / 8, MemoryRefusals: 1}},
		{running("free", 0, 0, 200), 0, v1alpha1.ModeLimiter, v1alpha1.Amounts{Mem: 200},
			layout.DeviceUsage{UsedBytes: 50 << 20, Busy: scrapeEvery / 4}},
		{running("whole", 1, 100, 1000), 1, v1alpha1.ModeExclusive, v1alpha1.Amounts{Core: 100, Mem: 1000}, layout.DeviceUsage{}},
	}
	late := objects.Single("late", objects.Share(25, 250), objects.InNamespace("lab"), objects.OnNode("m"))
	large := objects.Single("large", objects.Share(10, objects.DeviceMiB+1), objects.InNamespace("lab"))
	agents := prometheus.NewRegistry()
	agents.MustRegister(agentOf(t, n, now, &past, loads...), agentOf(t, m, now, &past))
	api := objects.Server(t, n.DeepCopy(), m.DeepCopy(), late, large)
	a := allocator.New(allocator.Config{
		Client: api, Filters: objects.Filters(t.Context(), t), Events: &record.FakeRecorder{},
		Clock: clock.RealClock{}, Log: logr.Discard(), Groups: &podgroup.Sizes{}, Requests: 1,
	})
	// Two replicas have the same gauges.
	replicas := prometheus.NewRegistry()
	for _, name := range []string{"a", "b"} {
		r := prometheus.WrapRegistererWith(prometheus.Labels{"instance": name}, replicas)
		r.MustRegister(a.Collector(), registry.Registry.(prometheus.Collector))
	}
	for _, l := range []*v1alpha1.SliceLedger{n, m} {
		a.SetNode(nil, objects.Node(l.Name))
		stored := &v1alpha1.SliceLedger{}
		must.Do(t, api.Get(t.Context(), client.ObjectKeyFromObject(l), stored))
		a.SetLedger(stored)
	}
	for _, l := range loads {
		a.SetPod(l.pod)
	}
	must.Run(t, a.Lead)
	series := recorded{}
	for i := range scrapes {
		if i == scrapes-5 {
			a.SetPod(late)
			a.SetPod(large)
			awaitSeries(t, replicas, `vernier_allocator_waiting_pods{instance="a"}`, "1")
			awaitSeries(t, replicas, `vernier_allocator_placements_total{instance="a"}`, "1")
		}
		series.scrape(t, i, prometheus.Gatherers{agents, replicas})
		past++
		now.SetTime(now.Now().Add(scrapeEvery))
	}

	var board dashboard
	readYAML(t, "chart/files/dashboard.json", &board)
	var input, tests []any
	for _, name := range slices.Sorted(maps.Keys(series)) {
		input = append(input, map[string]any{"series": name, "values": strings.Join(series[name], " ")})
	}
	ask := func(expr string, want figures) {
		samples := []any{}
		for labels, value := range want {
			samples = append(samples, map[string]any{"labels": labels, "value": value})
		}
		// A panel shows no more than three digits.
		shown := "round(" + expr + ", 0.001)"
		if strings.HasPrefix(expr, "histogram_quantile") {
			shown = "(" + expr + ") > bool 0" // how long a decision takes is another figure on every machine
		}
		tests = append(tests, map[string]any{"expr": shown, "eval_time": ((scrapes-1)*scrapeEvery - scrapeEvery/2).String(), "exp_samples": samples})
	}
	panels := map[string]bool{}
	for _, model := range []string{".*", "A100"} {
		variables := strings.NewReplacer("$namespace", ".*", "$model", model, "$node", ".*")
		wants := shown
		if model != ".*" {
			wants = shownOfA100
		}
		for _, panel := range board.Panels {
			for _, q := range panel.Targets {
				panels[panel.Title+" "+q.RefID] = true
				if want, is := wants[panel.Title+" "+q.RefID]; is {
					ask(variables.Replace(q.Expr), want)
				}
			}
		}
	}
	if want := slices.Sorted(maps.Keys(shown)); !slices.Equal(slices.Sorted(maps.Keys(panels)), want) {
		t.Errorf("panels %q, want figures of each and no others: %q", slices.Sorted(maps.Keys(panels)), want)
	}
	asked := map[string]any{"interval": scrapeEvery.String(), "input_series": input, "promql_expr_test": tests}
	file := filepath.Join(t.TempDir(), "figures.yaml")
	must.Do(t, os.WriteFile(file, must.Get(yaml.Marshal(map[string]any{"evaluation_interval": scrapeEvery.String(), "tests": []any{asked}}))(t), 0o600))
	promtool(t, "test", "rules", file)
}

func awaitSeries(t *testing.T, from prometheus.Gatherer, name, value string) {
	t.Helper()
	seen := recorded{}
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		seen.scrape(t, 0, from)
		return seen[name] != nil && seen[name][0] == value, nil
	}); err != nil {
		t.Fatalf("%s is %v, want %s", name, seen[name], value)
	}
}

// of are the labels of a container's series, and gpuOf those of a device.
func of(pod string, gpu int) string {
	return fmt.Sprintf(`{node="n", namespace="team", pod=%q, container="c", uuid="GPU-n-%d"}`, pod, gpu)
}

func gpuOf(node string, gpu int, model string) string {
	if model != "" {
		model = fmt.Sprintf(`, model=%q`, model)
	}
	return fmt.Sprintf(`{node=%q, uuid="GPU-%s-%d"%s}`, node, node, gpu, model)
}

func onAll(value float64) figures {
	all := figures{}
	for _, node := range []string{"n", "m"} {
		all[gpuOf(node, 0, "T4")], all[gpuOf(node, 1, "T4")] = value, value
	}
	delete(all, gpuOf("n", 1, "T4"))
	all[gpuOf("n", 1, "A100")] = value
	return all
}

var (
	team = `{namespace="team"}`
	lab  = `{namespace="lab"}`

	// shown is each panel's figures.
	shown = map[string]figures{
		"GPUs A":                          {`{}`: 4},
		"Compute granted A":               {`{}`: 0.438}, // 1.75 of 4
		"Memory granted A":                {`{}`: 0.463}, // 1850 of 4000 MiB
		"GPUs out of service A":           {`{}`: 1},
		"Waiting pods A":                  {`{}`: 1},
		"Processes that no limit holds A": {`{}`: 4},
		"Compute granted, by model A":     {`{model="T4"}`: 0.25, `{model="A100"}`: 1},
		"GPUs that may take slices: free, shared, full A": {`{use="free"}`: 0, `{use="shared"}`: 2, `{use="full"}`: 1},
		"GPUs that may take slices: free, shared, full B": {`{}`: 0},
		"Fullest nodes A":                                 {`{node="n"}`: 0.75, `{node="m"}`: 0},
		"Compute granted, by namespace A":                 {team: 1.5, lab: 0.25},
		"Memory granted, by namespace A":                  {team: 1600 << 20, lab: 250 << 20},
		"Waiting pods, by reason A":                       {`{reason="devices"}`: 1, `{reason="invalid"}`: 0, `{reason="others"}`: 0, `{reason="scheduler"}`: 0},
		"Compute used of what is granted, by namespace A": {team: 0.5},   // 0.25 and 0.5 of 1.5; without a quota nothing is granted
		"Memory used of what is granted, by namespace A":  {team: 0.406}, // 100, 50 and 500 of 1600 MiB
		"Containers that use least of their quota A":      {of("half", 0): 0.5, of("whole", 1): 0.5},
		"Containers: use of the quota A":                  {of("half", 0): 0.5, of("whole", 1): 0.5},
		"Containers: use of the memory A":                 {of("half", 0): 0.25, of("free", 0): 0.25, of("whole", 1): 0.5},
		"Time spent waiting for the quota A":              {of("half", 0): 0.125, of("free", 0): 0},
		"Allocations refused A":                           {of("half", 0): 10, of("free", 0): 0},
		"Containers: slowdown A":                          {of("half", 0): 1.5},
		"Containers: waiting for a CPU A": {
			`{node="n", namespace="team", pod="half", container="c"}`: 0.5, `{node="n", namespace="team", pod="free", container="c"}`: 0.5,
			`{node="n", namespace="team", pod="whole", container="c"}`: 0.5},
		"Each GPU: compute granted and used A":                  {gpuOf("n", 0, "T4"): 0.5, gpuOf("n", 1, "A100"): 1, gpuOf("m", 0, "T4"): 0, gpuOf("m", 1, "T4"): 0},
		"Each GPU: compute granted and used B":                  {gpuOf("n", 0, ""): 0.5, gpuOf("n", 1, ""): 0.5},
		"Each GPU: memory granted and used A":                   {gpuOf("n", 0, "T4"): 0.6, gpuOf("n", 1, "A100"): 1, gpuOf("m", 0, "T4"): 0, gpuOf("m", 1, "T4"): 0},
		"Each GPU: memory granted and used B":                   {gpuOf("n", 0, ""): 0.15, gpuOf("n", 1, ""): 0.5},
		"Each GPU: memory bandwidth and multiprocessors used A": onAll(0.25),
		"Each GPU: memory bandwidth and multiprocessors used B": onAll(0.75),
		"Each GPU: PCIe and NVLink A":                           onAll(3),
		"Each GPU: PCIe and NVLink B":                           onAll(7),
		"Placements A":                                          {`{}`: 0.007}, // two replicas of one
		"Placements B":                                          {`{}`: 0},
		"Time of a decision A":                                  {`{}`: 1},
		"Time of a decision B":                                  {`{}`: 1},
		"Conflicts, refused pins A":                             {`{object="ledger"}`: 0, `{object="pod"}`: 0},
		"Conflicts, refused pins B":                             {`{}`: 0},
	}

	// shownOfA100 is what they show where that model alone is chosen.
	shownOfA100 = map[string]figures{
		"GPUs A":                          {`{}`: 1},
		"Compute granted A":               {`{}`: 1},
		"Memory granted A":                {`{}`: 1},
		"GPUs out of service A":           {`{}`: 0},
		"Fullest nodes A":                 {`{node="n"}`: 1},
		"Compute granted, by namespace A": {team: 1},
		"Compute used of what is granted, by namespace A": {team: 0.5},
		"Memory used of what is granted, by namespace A":  {team: 0.5},
		"Each GPU: compute granted and used B":            {gpuOf("n", 1, ""): 0.5},
		"Each GPU: memory granted and used B":             {gpuOf("n", 1, ""): 0.5},
	}
)
