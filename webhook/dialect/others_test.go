// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
)

func all(names string) dialect.Settings { return dialect.Settings{Dialects: names} }

func TestGPUManager(t *testing.T) {
	check(t, "gpu-manager", map[string]reading{
		"a part of a card": {
			pod: `{metadata: {annotations: {tencent.com/vcuda-core-limit: "50"}}, spec: {hostNetwork: true, containers: [{name: a, resources: {
				requests: {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 30}, limits: {tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 30}}}]}}`,
			shares: `{"a":{"gpus":1,"core":30,"memMiB":7680}}`, warns: []string{"tencent.com/vcuda-core-limit]: not honoured"}},
		"whole cards, whatever the memory": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {tencent.com/vcuda-core: 200, tencent.com/vcuda-memory: 60}}}]}}`,
			shares: `{"a":{"gpus":2,"core":100,"memPercent":100}}`},
		"between": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {tencent.com/vcuda-core: 150, tencent.com/vcuda-memory: 60}}}]}}`,
			refuses: []string{"use a multiple of 100"}},
		"no memory": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {tencent.com/vcuda-core: 50}}}]}}`,
			refuses: []string{"limits[tencent.com/vcuda-memory]"}},
		"no compute": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {tencent.com/vcuda-memory: 50}}}]}}`,
			refuses: []string{"limits[tencent.com/vcuda-core]"}},
	})
}

func TestNVIDIA(t *testing.T) {
	sliced := dialect.Settings{Dialects: "nvidia", NVIDIAReplicas: 4, NVIDIATimeSlicing: true}
	check(t, "nvidia", map[string]reading{
		"a replica is its part of the memory": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu.shared: 1}}}]}}`,
			settings: dialect.Settings{NVIDIAReplicas: 3}, shares: `{"a":{"gpus":1,"memPercent":33}}`},
		"several": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu.shared: 2}}}]}}`,
			settings: dialect.Settings{NVIDIAReplicas: 4}, shares: `{"a":{"gpus":2,"memPercent":25}}`,
			warns: []string{"2 replicas are on 2 GPUs"}},
		"nobody has said how many": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu.shared: 1}}}]}}`,
			refuses: []string{"--nvidia-replicas"}},
		"time-slicing by default calls it a GPU": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}, {name: b, resources: {limits: {nvidia.com/gpu.shared: 1}}}]}}`,
			settings: sliced, shares: `{"a":{"gpus":1,"memPercent":25},"b":{"gpus":1,"memPercent":25}}`},
		"several, by that name": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2}}}]}}`,
			settings: sliced, shares: `{"a":{"gpus":2,"memPercent":25}}`, warns: []string{"limits[nvidia.com/gpu]: 2 replicas are on 2 GPUs"}},
		"by both names": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpu.shared: 1}}}]}}`,
			settings: sliced, refuses: []string{"nvidia.com/gpu.shared is asked for as well"}},
		"another scheduler's": {
			pod:      `{spec: {schedulerName: kai-scheduler, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			settings: sliced},
		"whole GPUs are the device plugin's": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`},
	})
}

func TestSettings(t *testing.T) {
	for args, want := range map[string]string{
		"":                                          "",
		"--dialects=all":                            strings.Join(dialect.Names(), " "),
		"--dialects=kai,hami":                       "kai hami",
		"--dialects=none":                           `error: --dialects "none": "none" is unknown`,
		"--dialects=hami,hami":                      "error: --dialects \"hami,hami\" names hami twice",
		"--gpushare-unit=GB":                        "error: --gpushare-unit",
		"--hami-default-cores=101":                  "error: --hami-default-cores",
		"--hami-default-mem=8589934592":             "error: --hami-default-mem",
		"--nvidia-replicas=101":                     "error: --nvidia-replicas",
		"--dialects=nvidia,hami,volcano":            "nvidia hami volcano",
		"--nvidia-time-slicing --nvidia-replicas=4": "error: --nvidia-time-slicing means nothing without the dialect nvidia",
		"--nvidia-time-slicing --nvidia-replicas=4 --dialects=hami":                                                    "error: --nvidia-time-slicing means nothing without the dialect nvidia",
		"--nvidia-time-slicing --dialects=nvidia":                                                                      "error: --nvidia-time-slicing: say with --nvidia-replicas",
		"--nvidia-time-slicing --nvidia-replicas=4 --dialects=nvidia":                                                  "nvidia",
		"--dialects=hami --renamed-resource=nvidia.com/gpu=nvidia.com/vgpu --renamed-resource=nvidia.com/gpumem=a.b/c": "hami",
		"--renamed-resource=nvidia.com/gpu=nvidia.com/vgpu --renamed-resource=nvidia.com/gpu=a.b/c":                    "error: nvidia.com/gpu is named twice",
		"--renamed-resource=aliyun.com/gpu-mem=a.b/c":                                                                  `error: "aliyun.com/gpu-mem" is no name of HAMi's or Volcano's`,
		"--renamed-resource=nvidia.com/gpu":                                                                            `error: nvidia.com/gpu: "" is no name of another system's resource`,
		"--renamed-resource=nvidia.com/gpu=vernier.dev/gpu":                                                            `error: nvidia.com/gpu: "vernier.dev/gpu" is no name`,
	} {
		var s dialect.Settings
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		s.AddFlags(flags)
		flags.SetOutput(io.Discard)
		err := flags.Parse(strings.Fields(args))
		var set dialect.Set
		if err == nil {
			set, err = s.Set()
		}
		var names []string
		for _, d := range set {
			names = append(names, d.Words().Name)
		}
		got := strings.Join(names, " ")
		if err != nil {
			_, text, found := strings.Cut(err.Error(), "flag -renamed-resource: ")
			if !found {
				text = err.Error()
			}
			got = "error: " + text
		}
		if got != want && !(err != nil && strings.HasPrefix(got, want)) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// A pod that asks in a dialect has its trace somewhere.
func TestTraces(t *testing.T) {
	set := must.Get(all("all").Set())(t)
	renamed := must.Get(dialect.Settings{Dialects: "volcano", Renamed: map[corev1.ResourceName]corev1.ResourceName{"volcano.sh/vgpu-cores": "a.b/c"}}.Set())(t)
	for _, d := range append(set, renamed...) {
		words := d.Words()
		for _, name := range words.Resources {
			if asks := name != "nvidia.com/priority"; asks && !strings.Contains(string(name), words.Trace) {
				t.Errorf("%s: %s is without %q", words.Name, name, words.Trace)
			}
		}
		if !slices.Contains(append(set.Traces(), renamed.Traces()...), words.Trace) {
			t.Errorf("%q is missing in %q", words.Trace, set.Traces())
		}
	}
}

func TestGPUShare(t *testing.T) {
	check(t, "gpushare", map[string]reading{
		"GiB": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 3}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":3072}}`},
		"MiB": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 8138}}}]}}`,
			settings: dialect.Settings{GPUShareUnit: "MiB"},
			shares:   `{"a":{"gpus":1,"memMiB":8138}}`},
		"a total over the GPUs of a label": {
			pod:    `{metadata: {labels: {aliyun.com/gpu-count: "4"}}, spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}}`,
			shares: `{"a":{"gpus":4,"memMiB":2048}}`},
		"over the GPUs of a resource": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 8, aliyun.com/gpu-count: 2}}}]}}`,
			shares: `{"a":{"gpus":2,"memMiB":4096}}`},
		"with compute": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 2, aliyun.com/gpu-core.percentage: 25}}}]}}`,
			shares: `{"a":{"gpus":1,"core":25,"memMiB":2048}}`},
		// gpushare's own samples, where the operator has left the unit at its default.
		"MiB, read as GiB": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 8138}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":8333312}}`, warns: []string{"no GPU has 8138: where pods say it in MiB"}},
		"GiB, read as MiB": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 3}}}]}}`,
			settings: dialect.Settings{GPUShareUnit: "MiB"},
			shares:   `{"a":{"gpus":1,"memMiB":3}}`, warns: []string{"is read in MiB"}},
		"two containers": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 1}}}, {name: b, resources: {limits: {aliyun.com/gpu-mem: 2}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":1024},"b":{"gpus":1,"memMiB":2048}}`,
			warns:  []string{"the 2 containers that ask may get different GPUs"}},
		"uneven": {
			pod:     `{metadata: {labels: {aliyun.com/gpu-count: "4"}}, spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 6}}}]}}`,
			refuses: []string{"does not divide evenly over 4 GPUs"}},
		"no memory": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-count: 2}}}]}}`,
			refuses: []string{"limits[aliyun.com/gpu-mem]: Required value"}},
		"not a count": {
			pod:     `{metadata: {labels: {aliyun.com/gpu-count: many}}, spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 6}}}]}}`,
			refuses: []string{`metadata.labels[aliyun.com/gpu-count]: Invalid value: "many"`}},
		"compute of several": {
			pod:     `{metadata: {labels: {aliyun.com/gpu-count: "2"}}, spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 6, aliyun.com/gpu-core.percentage: 10}}}]}}`,
			refuses: []string{"is a part of one GPU"}},
		"MiB written as GiB": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 3Gi}}}]}}`,
			refuses: []string{"must be a whole number of 1024 MiB each"}},
	})
}

func TestKoordinator(t *testing.T) {
	check(t, "koordinator", map[string]reading{
		"half of a GPU": {
			pod: `{metadata: {labels: {koordinator.sh/gpu-isolation-provider: hami-core}}, spec: {schedulerName: koord-scheduler, containers: [{name: a, resources: {
				limits: {cpu: 40m, koordinator.sh/gpu.shared: 1, koordinator.sh/gpu-core: 50, koordinator.sh/gpu-memory-ratio: 50},
				requests: {cpu: 40m, koordinator.sh/gpu.shared: 1, koordinator.sh/gpu-core: 50, koordinator.sh/gpu-memory-ratio: 50}}}]}}`,
			shares: `{"a":{"gpus":1,"core":50,"memPercent":50}}`, warns: []string{"koord-scheduler is replaced"}},
		"gpu is compute and memory": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu: 30}}}]}}`,
			shares: `{"a":{"gpus":1,"core":30,"memPercent":30}}`},
		"whole GPUs": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu: 200}}}, {name: b, resources: {limits: {nvidia.com/gpu: 3}}},
				{name: c, resources: {limits: {koordinator.sh/gpu-core: 400, koordinator.sh/gpu-memory-ratio: 400}}}]}}`,
			shares: `{"a":{"gpus":2,"core":100,"memPercent":100},"b":{"gpus":3,"core":100,"memPercent":100},"c":{"gpus":4,"core":100,"memPercent":100}}`,
			warns:  []string{"the 3 containers that ask may get different GPUs"}},
		"bytes": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu-core: 10, koordinator.sh/gpu-memory: 8Gi}}}]}}`,
			shares: `{"a":{"gpus":1,"core":10,"memMiB":8192}}`},
		"bytes, rounded up": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu-memory: "1048577"}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":2}}`},
		"totals over several": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu.shared: 2, koordinator.sh/gpu-core: 100, koordinator.sh/gpu-memory: 16Gi}}}]}}`,
			shares: `{"a":{"gpus":2,"core":50,"memMiB":8192}}`},
		"memory alone, of several": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu.shared: 4, koordinator.sh/gpu-memory-ratio: 100}}}]}}`,
			shares: `{"a":{"gpus":4,"memPercent":25}}`},
		"hints and queues": {
			pod: `{metadata: {labels: {quota.scheduling.koordinator.sh/name: q}, annotations: {gang.scheduling.koordinator.sh/name: g, scheduling.koordinator.sh/device-allocate-hint: "{}"}},
				spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu: 10}}}]}}`,
			shares: `{"a":{"gpus":1,"core":10,"memPercent":10}}`,
			warns: []string{"gang.scheduling.koordinator.sh/name]: not honoured", "device-allocate-hint]: not honoured",
				"metadata.labels[quota.scheduling.koordinator.sh/name]: not honoured"}},
		"its scheduler tells nvidia.com/gpu from HAMi's": {
			pod:      `{spec: {schedulerName: koord-scheduler, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			settings: all("hami,koordinator"),
			shares:   `{"a":{"gpus":1,"core":100,"memPercent":100}}`, warns: []string{"koord-scheduler is replaced"}},
		// As in Koordinator's announcement of its release 1.6, and with its network cards.
		"misspelt, and not GPUs": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu-shared: 1, koordinator.sh/gpu-core: 50, koordinator.sh/gpu-memory-ratio: 50},
				requests: {koordinator.sh/gpu-shared: 1}}}, {name: b, resources: {requests: {koordinator.sh/rdma: 100}}}]}}`,
			shares: `{"a":{"gpus":1,"core":50,"memPercent":50}}`,
			warns: []string{"spec.containers[0].resources.limits[koordinator.sh/gpu-shared]: not translated: it stays in the pod",
				"spec.containers[1].resources.requests[koordinator.sh/rdma]: not translated"}},
		"150 of 100": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu: 150}}}]}}`,
			refuses: []string{`limits[koordinator.sh/gpu]: Invalid value: "150": more than one GPU`}},
		"uneven": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu.shared: 3, koordinator.sh/gpu-memory-ratio: 100}}}]}}`,
			refuses: []string{"of each of 3 GPUs"}},
		"more than all of them": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu.shared: 2, koordinator.sh/gpu-core: 300, koordinator.sh/gpu-memory-ratio: 100}}}]}}`,
			refuses: []string{"100 at most, of each of 2 GPUs"}},
		"compute alone": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu-core: 10}}}]}}`,
			refuses: []string{"keep to one of these"}},
		"two ways at once": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {koordinator.sh/gpu: 10, koordinator.sh/gpu-core: 10, koordinator.sh/gpu-memory: 1Gi}}}]}}`,
			refuses: []string{"keep to one of these"}},
	})
}

func TestVolcano(t *testing.T) {
	replaced := "spec.schedulerName: volcano is replaced"
	check(t, "volcano", map[string]reading{
		"memory and cores of each": {
			pod: `{metadata: {annotations: {volcano.sh/vgpu-mode: hami-core}}, spec: {schedulerName: volcano,
				containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 2, volcano.sh/vgpu-memory: 3000, volcano.sh/vgpu-cores: 50}}}]}}`,
			shares: `{"a":{"gpus":2,"core":50,"memMiB":3000}}`, warns: []string{replaced}},
		"percent": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory-percentage: 25}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":25}}`},
		"a number alone": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`},
		"memory alone": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-memory: 1024}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":1024}}`},
		"the older sharing": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {volcano.sh/gpu-memory: 1024}}},
				{name: b, resources: {limits: {volcano.sh/gpu-number: 2}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":1024},"b":{"gpus":2,"core":100,"memPercent":100}}`},
		"both of them": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {volcano.sh/gpu-memory: 1024, volcano.sh/vgpu-number: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`, warns: []string{"volcano.sh/gpu-memory]: removed and not honoured"}},
		"a job's pod, with models and devices": {
			pod: `{metadata: {annotations: {scheduling.k8s.io/group-name: g, volcano.sh/queue-name: q, volcano.sh/job-name: j, volcano.sh/vgpu-use-gpuuuid: GPU-1,
				volcano.sh/vgpu-nouse-gpuuuid: GPU-2, nvidia.com/nouse-gputype: T4}},
				spec: {schedulerName: volcano, containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			set:    map[string]string{"vernier.dev/gpu-uuid": "GPU-1", "vernier.dev/gpu-model": "!T4"},
			warns:  []string{"scheduling.k8s.io/group-name]: honoured while Volcano's PodGroups are installed; without them the pods are placed one by one", "volcano.sh/queue-name]: not honoured", replaced}},
		"a Deployment's pod, with queue and group": {
			pod: `{metadata: {annotations: {scheduling.volcano.sh/queue-name: q, scheduling.volcano.sh/group-min-member: "2", scheduling.volcano.sh/x: v}},
				spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			warns: []string{"scheduling.volcano.sh/group-min-member]: not honoured: the pods are placed one by one", "scheduling.volcano.sh/queue-name]: not honoured: Volcano's queue",
				"scheduling.volcano.sh/x]: not honoured: Vernier has nothing like it"}},
		"another dialect in another container": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}, {name: b, resources: {limits: {aliyun.com/gpu-mem: 1}}}]}}`,
			settings: all("volcano,gpushare"), refuses: []string{"spec.containers[1].resources: Forbidden: asks in the dialect gpushare"}},
		"not Volcano's": {
			pod: `{spec: {schedulerName: volcano, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`},
	})
}
