// SPDX-License-Identifier: Apache-2.0

package dialect_test

import "testing"

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
			warns:  []string{"scheduling.k8s.io/group-name]: not honoured", "volcano.sh/queue-name]: not honoured", replaced}},
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
