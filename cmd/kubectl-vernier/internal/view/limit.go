// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
)

// The units in which the pods of a limited namespace ask for memory.
const (
	MemoryPercent = "percent"
	MemoryMiB     = "mib"
)

// instancesOfAGPU is how many instances of MIG a GPU has at most.
const instancesOfAGPU = 7

// Limit is what a ResourceQuota says so that the pods of its namespace have so much of GPUs at most.
// The sentences say what that means with the GPUs of the ledgers. The one unit of memory is counted in full, the other
// not admitted: both in full would let twice as much in.
func Limit(gpus v1alpha1.Percent, memory string, all []v1alpha1.SliceLedger) (corev1.ResourceList, []string, error) {
	var least, most *v1alpha1.DeviceStatus
	mig := 0
	for i := range all {
		for j := range all[i].Status.Devices {
			d := &all[i].Status.Devices[j]
			if d.Mem == 0 {
				continue
			}
			if least == nil || d.Mem < least.Mem {
				least = d
			}
			if most == nil || d.Mem > most.Mem {
				most = d
			}
			if d.MIG == v1alpha1.MIGEnabled {
				mig++
			}
		}
	}
	slots := int64(v1alpha1.MaxSlicesPerDevice)
	if mig > 0 {
		slots = instancesOfAGPU
	}
	slots = max(1, slots*int64(gpus)/int64(v1alpha1.WholeGPU))
	of := func(mem v1alpha1.MiB) int64 { return int64(mem) * int64(gpus) / int64(v1alpha1.WholeGPU) }
	percent, mib := int64(gpus), int64(0)
	says := []string{fmt.Sprintf("At most %d %% of a GPU's compute and as much memory, in %d slices, whatever the pods ask for:", gpus, slots)}
	switch {
	case memory == MemoryPercent:
		if most != nil {
			says = append(says, fmt.Sprintf("- memory is asked for in percent, or is that of compute: at worst %d MiB, on %s (%d MiB each)", of(most.Mem), most.Model, most.Mem))
		}
		says = append(says, "- refused: gpu-mem-mib, and classes with memMiB (--memory mib counts these instead)")
	case least == nil:
		return nil, nil, errors.New("--memory mib counts by the GPU with the least memory, and no node reports a GPU yet: label nodes, or use --memory percent")
	default:
		percent, mib = 0, of(least.Mem)
		says = append(says,
			fmt.Sprintf("- memory is asked for in MiB: %d, which are %s of %s (%d MiB), and %s of %s (%d MiB)", mib,
				gpus.GPUsText(), least.Model, least.Mem, v1alpha1.Percent(mib*int64(v1alpha1.WholeGPU)/int64(most.Mem)).GPUsText(), most.Model, most.Mem),
			"- refused: gpu-mem, gpu-core without gpu-mem-mib, and classes without memMiB (--memory percent counts these instead)")
	}
	says = append(says,
		"- refused: shares of init containers that are no sidecars, which may hold more than is counted",
		"- containers that ask for memory alone compute in what others leave (webhook.computeShares gives them a quota)")
	if mig > 0 {
		says = append(says, fmt.Sprintf("- %d GPU(s) are in MIG mode: a slice is a whole instance there, and may hold more than is counted", mig))
	}
	hard := corev1.ResourceList{}
	bound := func(name corev1.ResourceName, n int64) {
		hard[corev1.DefaultResourceRequestsPrefix+name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	bound(v1alpha1.ResourceCore, int64(gpus))
	bound(v1alpha1.ResourceMemPercent, percent)
	bound(v1alpha1.ResourceMemMiB, mib)
	bound(v1alpha1.ResourceGPUs, slots)
	return hard, says, nil
}
