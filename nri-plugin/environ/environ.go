// SPDX-License-Identifier: Apache-2.0

// Package environ owns the variables for containers whose pods were
// written for another system of sharing GPUs. That system would have set them
// to describe their share.
//
// It tells what has been granted and grants nothing; no limit depends on it.
package environ

import (
	"fmt"
	"strconv"
	"strings"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// Variable of a container.
type Variable struct{ Name, Value string }

// Of lists the variables of a container, in a fixed order. The dialect is the value of
// the pod's annotation, which may be anybody's: so may the variables. An unknown one has none.
func Of(dialect string, pod map[string]v1alpha1.Share, slices []ledger.Grant, now *device.Snapshot) []Variable {
	if pod == nil || len(slices) == 0 {
		return nil
	}
	switch dialect {
	case v1alpha1.DialectGPUShareGiB:
		return gpushare(pod, slices, now, 1024)
	case v1alpha1.DialectGPUShareMiB:
		return gpushare(pod, slices, now, 1)
	case v1alpha1.DialectHAMi, v1alpha1.DialectVolcano:
		return hami(slices)
	case v1alpha1.DialectKAI:
		// The part of one GPU; every slice of a container is alike.
		portion := float64(slices[0].Mem) / float64(max(1, slices[0].DeviceMem))
		return []Variable{{"GPU_PORTION", strconv.FormatFloat(portion, 'f', 2, 64)}}
	}
	return nil
}

// gpushare's variables are whole units, rounded down as its device plugin does.
func gpushare(pod map[string]v1alpha1.Share, slices []ledger.Grant, now *device.Snapshot, unit v1alpha1.MiB) []Variable {
	var indexes []string
	var container, all v1alpha1.MiB
	for _, s := range slices {
		d, _ := now.Device(s.UUID)
		indexes = append(indexes, strconv.Itoa(int(d.Index)))
		container += s.Mem
	}
	for _, share := range pod {
		all += share.MemMiB * v1alpha1.MiB(share.GPUs)
	}
	units := func(m v1alpha1.MiB) string { return strconv.FormatInt(int64(m/unit), 10) }
	return []Variable{
		{"ALIYUN_COM_GPU_MEM_IDX", strings.Join(indexes, ",")},
		{"ALIYUN_COM_GPU_MEM_POD", units(all)},
		{"ALIYUN_COM_GPU_MEM_CONTAINER", units(container)},
		{"ALIYUN_COM_GPU_MEM_DEV", units(slices[0].DeviceMem)},
	}
}

// hami's variables number the devices as the container sees them.
func hami(slices []ledger.Grant) []Variable {
	var all []Variable
	for i, s := range slices {
		all = append(all, Variable{fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT_%d", i), fmt.Sprintf("%dm", s.Mem)})
	}
	if core := slices[0].Core; core > 0 {
		all = append(all, Variable{"CUDA_DEVICE_SM_LIMIT", strconv.Itoa(int(core))})
	}
	return all
}
