// SPDX-License-Identifier: Apache-2.0

package dialect_test

import "testing"

func TestKAI(t *testing.T) {
	queue, replaced := "metadata.labels[kai.scheduler/queue]: not honoured", "kai-scheduler is replaced"
	check(t, "kai", map[string]reading{
		"a fraction is the first container's memory": {
			pod: `{metadata: {labels: {kai.scheduler/queue: q}, annotations: {gpu-fraction: "0.5"}}, spec: {schedulerName: kai-scheduler,
				containers: [{name: a, resources: {limits: {memory: 1Gi}}}, {name: b}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":50}}`, warns: []string{queue, replaced}},
		"no resources at all": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.25"}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":25}}`},
		"only claims": {
			pod:    `{metadata: {annotations: {gpu-memory: "2000"}}, spec: {containers: [{name: a, resources: {claims: [{name: x}]}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":2000}}`},
		"MiB on several": {
			pod:    `{metadata: {annotations: {gpu-memory: "2000", gpu-fraction-num-devices: "2"}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":2,"memMiB":2000}}`},
		"another container": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: i}}, spec: {initContainers: [{name: i}], containers: [{name: a}]}}`,
			shares: `{"i":{"gpus":1,"memPercent":50}}`},
		"a third": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.333"}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":33}}`, warns: []string{"0.333 is given as 33 %"}},
		"hundredths are whole percents": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.29"}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":29}}`},
		"a cap on compute": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.5", gpu-sm-percentage: "40"}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"core":40,"memPercent":50}}`},
		"whole GPUs": {
			pod:    `{spec: {schedulerName: runai-scheduler, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2}}}]}}`,
			shares: `{"a":{"gpus":2,"core":100,"memPercent":100}}`, warns: []string{"runai-scheduler is replaced"}},
		"each container by its name": {
			pod: `{metadata: {annotations: {nvidia.com/container.a.gpu-memory.request: 4Gi, nvidia.com/container.a.gpu-memory.limit: 8Gi, nvidia.com/container.b.gpu-memory.limit: "1500M",
				nvidia.com/container.a.gpu-compute.mode: time-slicing, nvidia.com/container.b.gpu-compute.mode: sm-sharing}}, spec: {containers: [{name: a}, {name: b}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":4096},"b":{"gpus":1,"memMiB":1431}}`,
			warns:  []string{"container.a.gpu-memory.limit]: not honoured"},
			set:    map[string]string{"vernier.dev/mode": "mps"}},
		"what cannot be kept": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.5", gpu-memory: "100", gpu-fraction.limit: "0.8", mps: "true", gpu-sm-cores: "8"}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":50}}`,
			warns:  []string{"[gpu-memory]: not honoured", "[gpu-fraction.limit]: not honoured", "[gpu-sm-cores]: not honoured"},
			set:    map[string]string{"vernier.dev/mode": "mps"}},
		"a group of pods, and Run:ai's limits": {
			pod: `{metadata: {labels: {runai/queue: q, kai.scheduler/subgroup-name: s}, annotations: {gpu-fraction: "0.25", pod-group-name: g, gpu-fraction-limit: "0.8"}},
				spec: {containers: [{name: a, env: [{name: X}, {name: RUNAI_GPU_MEMORY_LIMIT, value: "0.8"}]}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":25}}`,
			warns: []string{"[gpu-fraction-limit]: not honoured: memory beyond what is guaranteed", "[pod-group-name]: not honoured: the pods are placed one by one",
				"spec.containers[0].env[1]: not honoured: memory beyond", "[runai/queue]: not honoured: KAI's queue", "[kai.scheduler/subgroup-name]: not honoured"}},
		"how compute is shared, for the pod": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.5", kai.scheduler/gpu-compute-sharing-mode: sm-sharing, kai.scheduler/topology: t}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":50}}`, warns: []string{"[kai.scheduler/topology]: not honoured"},
			set: map[string]string{"vernier.dev/mode": "mps"}},
		"an MPS server of the operator's": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.5"}}, spec: {containers: [{name: a}], volumes: [{name: data, hostPath: {path: /data}}, {name: mps, hostPath: {path: /tmp/nvidia-mps}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":50}}`, warns: []string{"spec.volumes[1].hostPath: not honoured"}},
		"in turns": {
			pod:    `{metadata: {annotations: {gpu-fraction: "0.5", kai.scheduler/gpu-compute-sharing-mode: time-slicing}}, spec: {containers: [{name: a}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":50}}`},
		"nobody named so": {
			pod:     `{metadata: {annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: x}}, spec: {containers: [{name: a}]}}`,
			refuses: []string{`gpu-fraction-container-name]: Not found: "x"`}},
		"not a fraction": {
			pod:     `{metadata: {annotations: {gpu-fraction: "1.5"}}, spec: {containers: [{name: a}]}}`,
			refuses: []string{`metadata.annotations[gpu-fraction]: Invalid value: "1.5"`}},
		"not a number": {
			pod:     `{metadata: {annotations: {gpu-fraction: NaN, gpu-fraction-num-devices: "0", gpu-sm-percentage: "101"}}, spec: {containers: [{name: a}]}}`,
			refuses: []string{"gpu-fraction-num-devices]", "gpu-sm-percentage]", "[gpu-fraction]"}},
		"not MiB": {
			pod:     `{metadata: {annotations: {gpu-memory: 2Gi}}, spec: {containers: [{name: a}]}}`,
			refuses: []string{"metadata.annotations[gpu-memory]"}},
		"a part and a whole": {
			pod:     `{metadata: {annotations: {gpu-memory: "1"}}, spec: {schedulerName: kai-scheduler, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			refuses: []string{"nvidia.com/gpu]"}, warns: []string{replaced}},
		"ours as well": {
			pod:     `{metadata: {annotations: {gpu-fraction: "0.5"}}, spec: {containers: [{name: a, resources: {limits: {vernier.dev/gpu-core: 10}}}]}}`,
			refuses: []string{"in the dialect kai as well"}},
		"a device plugin's": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`},
	})
}
