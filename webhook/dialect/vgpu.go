// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
)

// vgpu is the arithmetic that HAMi and Volcano have in common: a number of vGPUs,
// each on a GPU of its own, and what each of them has.
type vgpu struct {
	count, mem, percent, cores corev1.ResourceName
	// defaultMem and defaultCores are those of a vGPU that asks for none; 0 are all
	// of the memory and no quota.
	defaultMem   api.MiB
	defaultCores api.Percent
}

// names are the resources.
func (v vgpu) names() []corev1.ResourceName {
	return []corev1.ResourceName{v.count, v.mem, v.percent, v.cores}
}

// trace stands in every pod that names one of the resources: a cluster may call them anything.
func trace(names []corev1.ResourceName) string {
	if slices.ContainsFunc(names, func(name corev1.ResourceName) bool { return !strings.Contains(string(name), "gpu") }) {
		return ""
	}
	return "gpu"
}

func (v vgpu) share(a *Asking) api.Share {
	if a.none(v.count, v.mem, v.percent, v.cores) {
		return api.Share{}
	}
	// Without a number it is one.
	share := api.Share{GPUs: max(1, a.gpus(v.count)), Core: v.defaultCores}
	if cores := a.percent(v.cores, 1_000_000); cores > api.WholeGPU {
		a.warn(v.cores, "%d is more than a GPU has: 100 is given, as there", cores)
		share.Core = api.WholeGPU
	} else if cores > 0 {
		share.Core = cores
	}
	share.MemMiB = a.mib(v.mem, 1)
	share.MemPercent = a.percent(v.percent, api.WholeGPU)
	switch {
	case share.MemMiB > 0 && share.MemPercent > 0:
		a.ignore(v.percent, string(v.mem)+" is set too, and counts, as there")
		share.MemPercent = 0
	case share.MemMiB == 0 && share.MemPercent == 0 && v.defaultMem > 0:
		share.MemMiB = v.defaultMem
	case share.MemMiB == 0 && share.MemPercent == 0:
		share.MemPercent = api.WholeGPU
	}
	if share.Core == api.WholeGPU && !share.Whole() {
		a.warn(v.cores, "100 of a GPU whose memory is not all asked for does not keep others away from the rest of it. "+
			"Ask for %s 100 for a GPU to itself", v.percent)
	}
	return share
}

// models turns lists of models to use and not to use into one of ours. The node
// agents of the other systems write NVIDIA- before the name of a GPU.
func models(use, not string) string {
	return allow(use, not, func(item string) string {
		if rest, cut := strings.CutPrefix(strings.ToUpper(item), "NVIDIA-NVIDIA"); cut {
			return "NVIDIA" + item[len(item)-len(rest):]
		}
		return item
	})
}

// uuids does the same with UUIDs.
func uuids(use, not string) string { return allow(use, not, func(item string) string { return item }) }

func allow(use, not string, spell func(string) string) string {
	var items []string
	add := func(list, sign string) {
		for item := range strings.SplitSeq(list, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, sign+spell(item))
			}
		}
	}
	add(use, "")
	add(not, "!")
	return strings.Join(items, ",")
}
