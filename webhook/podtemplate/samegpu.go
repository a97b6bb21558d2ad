// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
)

// sameGPU refuses containers that can never have their slices on one GPU.
func (f *findings) sameGPU(known fleet.Size) {
	path := annotationsPath.Key(api.AnnotationSameGPU)
	refuse := func(format string, args ...any) {
		f.errs = append(f.errs, field.Invalid(path, api.SameGPURequired, fmt.Sprintf(format, args...)))
	}
	for _, c := range f.Containers {
		if share := f.Shares[c.Name]; share.GPUs > 1 {
			refuse("container %s asks for %d GPUs: ask for one, or remove the annotation", c.Name, share.GPUs)
		}
	}
	if f.Mode == api.ModeExclusive && len(f.Shares) > 1 {
		refuse("mode %s gives each container a whole GPU: use another mode, or remove one of the annotations", f.Mode)
		return
	}
	// What runs at the same time: each init container beside the sidecars started before it,
	// and in the end the containers beside all sidecars.
	var most sum
	running := &sum{}
	for _, c := range f.Containers {
		if now := running.with(c.Name, f.Shares); c.Init && !c.Sidecar {
			most.raise(now)
		} else {
			running = now
		}
	}
	most.raise(running)
	if most.core > int64(api.WholeGPU) {
		refuse("containers %s run at the same time and ask for %d %% of a GPU's compute together: ask for 100 or less, or remove the annotation",
			strings.Join(most.coreOf, ", "), most.core)
	}
	if most.mem > int64(api.WholeGPU) {
		refuse("containers %s run at the same time and ask for %d %% of a GPU's memory together: ask for 100 or less, or remove the annotation",
			strings.Join(most.memOf, ", "), most.mem)
	}
	if w := known.Warning(api.Share{GPUs: 1, MemMiB: api.MiB(most.mib)}); w != "" {
		f.warnings = append(f.warnings, fmt.Sprintf("%s: the pod %s", path, w))
	}
}

// sum is what containers that run together ask for of one GPU, and which these are.
type sum struct {
	core, mem, mib int64
	coreOf, memOf  []string
}

// with is the sum with one more container.
func (s *sum) with(name string, shares map[string]api.Share) *sum {
	share, asks := shares[name]
	if !asks {
		return s
	}
	t := *s
	t.core, t.mem, t.mib = s.core+int64(share.Core), s.mem+int64(share.MemPercent), s.mib+int64(share.MemMiB)
	if share.Core > 0 {
		t.coreOf = append(t.coreOf[:len(t.coreOf):len(t.coreOf)], name)
	}
	if share.MemPercent > 0 {
		t.memOf = append(t.memOf[:len(t.memOf):len(t.memOf)], name)
	}
	return &t
}

// raise makes each amount that of the other sum where that is greater.
func (s *sum) raise(t *sum) {
	if t.core > s.core {
		s.core, s.coreOf = t.core, t.coreOf
	}
	if t.mem > s.mem {
		s.mem, s.memOf = t.mem, t.memOf
	}
	s.mib = max(s.mib, t.mib)
}

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
