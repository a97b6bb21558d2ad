// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
)

// topology refuses a pod of which the GPUs can never be near each other, and warns where a wish
// says nothing and where no node of today has what is required.
func (f *findings) topology(known fleet.Size) {
	wish, path := f.Topology, annotationsPath.Key(api.AnnotationTopology)
	var most api.DeviceCount
	for _, share := range f.Shares {
		most = max(most, share.GPUs)
	}
	if wish.Level != api.TopologyRDMA && most == 1 && (len(f.Shares) == 1 || f.SameGPU) {
		// The others say where its CPUs are to be as well.
		if wish.Level == api.TopologyNVLink {
			f.warn(path, fmt.Sprintf("%q has no effect, since the pod is on one GPU: remove it, or ask for several", wish))
		}
		return
	}
	if !wish.Required {
		return
	}
	least := f.leastGPUs()
	if least > api.MaxDevices {
		f.errs = append(f.errs, field.Invalid(path, wish.String(), fmt.Sprintf(
			"the containers that run at the same time need at least %d GPUs, and a node has %d at most. Ask for less, or make several pods of it", least, api.MaxDevices)))
		return
	}
	if most = max(most, api.DeviceCount(least)); most > 1 || wish.Level == api.TopologyRDMA {
		f.warn(path, known.TopologyWarning(wish.Level, most))
	}
}

// leastGPUs is how many GPUs the containers take that run in the end, if no two share more than
// there is of one.
func (f *findings) leastGPUs() int64 {
	percent := int64(0)
	for _, c := range f.Containers {
		if share := f.Shares[c.Name]; !c.Init || c.Sidecar {
			percent += int64(share.GPUs) * int64(max(share.Core, share.MemPercent))
		}
	}
	return (percent + int64(api.WholeGPU) - 1) / int64(api.WholeGPU)
}
