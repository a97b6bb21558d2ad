// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

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
	set, err := all("all").Set()
	if err != nil {
		t.Fatal(err)
	}
	renamed, err := dialect.Settings{Dialects: "volcano", Renamed: map[corev1.ResourceName]corev1.ResourceName{"volcano.sh/vgpu-cores": "a.b/c"}}.Set()
	if err != nil {
		t.Fatal(err)
	}
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
