// SPDX-License-Identifier: Apache-2.0

package dialect_test

import "testing"

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
