// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"testing"

	"vernier.dev/vernier/webhook/dialect"
)

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
