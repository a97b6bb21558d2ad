// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/webhook/dialect"
)

func TestHAMi(t *testing.T) {
	check(t, "hami", map[string]reading{
		"a number alone is all of the memory of each, and no quota": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2}}}]}}`,
			shares: `{"a":{"gpus":2,"memPercent":100}}`},
		"memory is that of each vGPU": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}}}]}}`,
			shares: `{"a":{"gpus":2,"core":30,"memMiB":3000}}`},
		"requests equal to the limits, as manifests often have": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {cpu: 8, nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 30, nvidia.com/gpucores: 30},
				requests: {cpu: 2, nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 30, nvidia.com/gpucores: 30}}}]}}`,
			shares: `{"a":{"gpus":2,"core":30,"memPercent":30}}`},
		"requests without limits": {
			pod:    `{spec: {containers: [{name: a, resources: {requests: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1024}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":1024}}`},
		"memory alone is one vGPU": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpumem: "2k"}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":2000}}`},
		"all of a GPU": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpucores: 100}}}]}}`,
			shares: `{"a":{"gpus":1,"core":100,"memPercent":100}}`},
		"the operator's defaults": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 3}}}]}}`,
			settings: dialect.Settings{HAMiDefaultMem: 5000, HAMiDefaultCores: 10},
			shares:   `{"a":{"gpus":3,"core":10,"memMiB":5000}}`},
		"its scheduler, and an init container": {
			pod: `{spec: {schedulerName: hami-scheduler, initContainers: [{name: i, resources: {limits: {nvidia.com/gpu: 1}}}],
				containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpucores: 50}}}, {name: b}]}}`,
			shares: `{"a":{"gpus":1,"core":50,"memPercent":100},"i":{"gpus":1,"memPercent":100}}`,
			warns:  []string{"spec.schedulerName: hami-scheduler is replaced by default-scheduler: Vernier chooses the GPUs, and the cluster's own scheduler binds the pod. Other pods of the job that ask for no GPU keep it"}},
		"percent and MiB": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 100, nvidia.com/gpumem-percentage: 50}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":100}}`,
			warns:  []string{"limits[nvidia.com/gpumem-percentage]: removed and not honoured"}},
		"priority, and more cores than there are": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/priority: 1, nvidia.com/gpucores: 120}}}]}}`,
			shares: `{"a":{"gpus":1,"core":100,"memPercent":100}}`,
			warns:  []string{"limits[nvidia.com/priority]: removed", "limits[nvidia.com/gpucores]: 120 is more"}},
		"all cores and a part of the memory": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpucores: 100, nvidia.com/gpumem: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"core":100,"memMiB":1}}`,
			warns:  []string{"does not keep others away"}},
		"models": {
			pod: `{metadata: {annotations: {nvidia.com/use-gputype: "A100,NVIDIA-NVIDIA A40", nvidia.com/nouse-gputype: "A100-PCIE"}},
				spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 2}}}]}}`,
			shares: `{"a":{"gpus":2,"memPercent":100}}`,
			set:    map[string]string{"vernier.dev/gpu-model": "A100,NVIDIA A40,!A100-PCIE"}},
		"UUIDs: what to use counts": {
			pod: `{metadata: {annotations: {nvidia.com/use-gpuuuid: "GPU-1, GPU-2", nvidia.com/nouse-gpuuuid: GPU-3}},
				spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			set:    map[string]string{"vernier.dev/gpu-uuid": "GPU-1,GPU-2"}},
		"UUIDs not to use": {
			pod:    `{metadata: {annotations: {nvidia.com/nouse-gpuuuid: "GPU-1,GPU-2"}}, spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			set:    map[string]string{"vernier.dev/gpu-uuid": "!GPU-1,!GPU-2"}},
		"policies that can be kept": {
			pod: `{metadata: {annotations: {hami.io/gpu-scheduler-policy: spread, hami.io/node-scheduler-policy: binpack, nvidia.com/vgpu-mode: hami-core, nvidia.com/numa-bind: "true"}},
				spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			set:    map[string]string{"vernier.dev/policy": "spread", "vernier.dev/topology": "numa"}},
		"an instance of MIG": {
			pod: `{metadata: {annotations: {nvidia.com/vgpu-mode: mig}},
				spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			set:    map[string]string{"vernier.dev/mode": "mig"}},
		"what cannot be kept": {
			pod: `{metadata: {annotations: {hami.io/node-scheduler-policy: spread, hami.io/vulkan: "true", nvidia.com/mig-profile-preference: 4g, nvidia.com/use-gpuindexes: "0,1", nvidia.com/vgpu-mode: mps}},
				spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			warns:  []string{"hami.io/node-scheduler-policy]", "hami.io/vulkan]", "nvidia.com/mig-profile-preference]", "nvidia.com/use-gpuindexes]"},
			set:    map[string]string{"vernier.dev/mode": "mps"}},
		"the user's own annotation counts": {
			pod: `{metadata: {annotations: {vernier.dev/policy: pack, hami.io/gpu-scheduler-policy: spread}},
				spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			shares: `{"a":{"gpus":1,"memPercent":100}}`,
			warns:  []string{"hami.io/gpu-scheduler-policy]: not honoured: vernier.dev/policy is set too"}},
		"an amount as an annotation": {
			pod:     `{metadata: {annotations: {nvidia.com/gpumem: "3000", nvidia.com/priority: "1"}}, spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`,
			warns:   []string{"nvidia.com/priority]: not honoured"},
			refuses: []string{`metadata.annotations[nvidia.com/gpumem]: Invalid value: "3000": an amount has no effect as an annotation: write it as a limit of the container`}},
		"an amount as an annotation and as a limit": {
			pod:    `{metadata: {annotations: {nvidia.com/gpumem: "3000"}}, spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 2000}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":2000}}`,
			warns:  []string{"nvidia.com/gpumem]: not honoured: it is an amount, and the container's limit counts"}},
		"renamed": {
			pod:      `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/vgpu: 2, example.com/memory: 3000, nvidia.com/gpucores: 30}}}]}}`,
			settings: dialect.Settings{Renamed: map[corev1.ResourceName]corev1.ResourceName{"nvidia.com/gpu": "nvidia.com/vgpu", "nvidia.com/gpumem": "example.com/memory"}},
			shares:   `{"a":{"gpus":2,"core":30,"memMiB":3000}}`},
		"renamed, and nobody has said so": {
			pod:    `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/vgpu: 2, nvidia.com/gpumem: 3000}}}]}}`,
			shares: `{"a":{"gpus":1,"memMiB":3000}}`,
			warns:  []string{"limits[nvidia.com/vgpu]: not translated: it stays in the pod, which waits for a node that has it: for a renamed resource the operator sets dialects.renamed (--renamed-resource)"}},
		"none asked for": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 0, nvidia.com/priority: 1}}}]}}`},
		"another system's pod": {
			pod: `{spec: {schedulerName: koord-scheduler, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}`},
		"ours as well": {
			pod:     `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1, vernier.dev/gpu-core: 10}}}]}}`,
			refuses: []string{"asks for vernier.dev resources and in the dialect hami"}},
		"amounts that cannot be": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 17, nvidia.com/gpumem: 8Gi, nvidia.com/gpumem-percentage: 101, nvidia.com/gpucores: 500m}}}]}}`,
			refuses: []string{`limits[nvidia.com/gpu]: Invalid value: "17"`, "gpucores]: Invalid value: \"500m\": must be a whole number",
				"gpumem]: Invalid value: \"8Gi\": must be a whole number of MiB, written without a suffix", "gpumem-percentage]: Invalid value: \"101\""}},
	})
}

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
