// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Settings say which dialects are switched on, and what the other systems' own
// configuration says that a pod does not.
type Settings struct {
	// Dialects by name, separated by commas, "all", or none.
	Dialects string
	// GPUShareUnit is what one aliyun.com/gpu-mem is: GiB or MiB; empty is GiB.
	GPUShareUnit string
	// HAMiDefaultMem in MiB and HAMiDefaultCores in percent are what a vGPU of HAMi
	// has that says none. 0 are all of the memory and no quota.
	HAMiDefaultMem, HAMiDefaultCores uint
	// NVIDIAReplicas is how many nvidia.com/gpu.shared one GPU was cut into; 0 where
	// nobody has said.
	NVIDIAReplicas uint
	// NVIDIATimeSlicing: one nvidia.com/gpu was such a replica, and no whole GPU.
	NVIDIATimeSlicing bool
	// Renamed are the names that a cluster's HAMi or Volcano has for resources, by their own.
	Renamed map[corev1.ResourceName]corev1.ResourceName
}

// AddFlags adds a flag for each setting.
func (s *Settings) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&s.Dialects, "dialects", "", "systems whose pods are understood, separated by commas, or all: "+strings.Join(Names(), ", "))
	flags.StringVar(&s.GPUShareUnit, "gpushare-unit", "GiB", "what one aliyun.com/gpu-mem is: GiB or MiB, as in the configuration of gpushare's device plugin")
	flags.UintVar(&s.HAMiDefaultMem, "hami-default-mem", 0, "MiB of a HAMi vGPU that asks for no memory, as HAMi's defaultMem; 0 is the whole GPU's")
	flags.UintVar(&s.HAMiDefaultCores, "hami-default-cores", 0, "percent of a HAMi vGPU that asks for no cores, as HAMi's defaultCores; 0 is no quota")
	flags.UintVar(&s.NVIDIAReplicas, "nvidia-replicas", 0, "nvidia.com/gpu.shared of one GPU, as in the configuration of NVIDIA's device plugin")
	flags.BoolVar(&s.NVIDIATimeSlicing, "nvidia-time-slicing", false, "nvidia.com/gpu is one of --nvidia-replicas, as NVIDIA's device plugin calls it without renameByDefault; otherwise it is a whole GPU, and not translated")
	flags.Func("renamed-resource", "NAME=OTHER, where HAMi's or Volcano's own configuration calls its resource NAME otherwise; may be repeated", s.rename)
}

// renamable are the resources whose names are settings of HAMi and of Volcano.
var renamable = []corev1.ResourceName{nvidiaGPU, hamiMem, hamiPercent, hamiCores, hamiPriority,
	volcanoCount, volcanoMem, volcanoPercent, volcanoCores}

func (s *Settings) rename(text string) error {
	own, other, _ := strings.Cut(text, "=")
	name := corev1.ResourceName(own)
	_, twice := s.Renamed[name]
	switch {
	case !slices.Contains(renamable, name):
		return fmt.Errorf("%q is no name of HAMi's or Volcano's: write NAME=OTHER, of which NAME is one of %v", own, renamable)
	case twice:
		return fmt.Errorf("%s is named twice", name)
	case !strings.Contains(other, "/") || strings.HasPrefix(other, api.Prefix) || len(validation.IsQualifiedName(other)) > 0:
		return fmt.Errorf("%s: %q is no name of another system's resource, such as example.com/vgpu", name, other)
	}
	if s.Renamed == nil {
		s.Renamed = map[corev1.ResourceName]corev1.ResourceName{}
	}
	s.Renamed[name] = corev1.ResourceName(other)
	return nil
}

// vgpu has the names of the four resources that HAMi and Volcano both have.
func (s Settings) vgpu(count, mem, percent, cores corev1.ResourceName) vgpu {
	return vgpu{count: s.name(count), mem: s.name(mem), percent: s.name(percent), cores: s.name(cores)}
}

func (s Settings) name(own corev1.ResourceName) corev1.ResourceName {
	return cmp.Or(s.Renamed[own], own)
}

// build makes the dialects, in the order in which pods are tried.
func (s Settings) build() Set {
	ofHAMi := hami{vgpu: s.vgpu(nvidiaGPU, hamiMem, hamiPercent, hamiCores), priority: s.name(hamiPriority)}
	ofHAMi.defaultMem, ofHAMi.defaultCores = api.MiB(s.HAMiDefaultMem), api.Percent(s.HAMiDefaultCores)
	return Set{
		gpushare{unit: s.GPUShareUnit},
		ofHAMi,
		volcano{s.vgpu(volcanoCount, volcanoMem, volcanoPercent, volcanoCores)},
		koordinator{},
		kai{},
		gpuManager{},
		nvidia{replicas: api.Percent(s.NVIDIAReplicas), timeSlicing: s.NVIDIATimeSlicing},
	}
}

// Names of all dialects.
func Names() []string {
	var names []string
	for _, d := range (Settings{}).build() {
		names = append(names, d.Words().Name)
	}
	return names
}

// Set is the dialects that the settings switch on, in the order that they name
// them.
func (s Settings) Set() (Set, error) {
	switch {
	case !slices.Contains([]string{"", "GiB", "MiB"}, s.GPUShareUnit):
		return nil, fmt.Errorf("--gpushare-unit %q: use GiB or MiB", s.GPUShareUnit)
	case s.HAMiDefaultMem > mostMiB:
		return nil, fmt.Errorf("--hami-default-mem %d: it is in MiB, %d at most", s.HAMiDefaultMem, mostMiB)
	case s.HAMiDefaultCores > uint(api.WholeGPU):
		return nil, fmt.Errorf("--hami-default-cores %d: it is in percent, %d at most", s.HAMiDefaultCores, api.WholeGPU)
	case s.NVIDIAReplicas > uint(api.WholeGPU):
		return nil, fmt.Errorf("--nvidia-replicas %d: the smallest share is 1 percent, %d replicas at most", s.NVIDIAReplicas, api.WholeGPU)
	case s.NVIDIATimeSlicing && s.NVIDIAReplicas == 0:
		return nil, errors.New("--nvidia-time-slicing: say with --nvidia-replicas how many nvidia.com/gpu one GPU was")
	case s.NVIDIATimeSlicing && s.Dialects == "":
		return nil, errNoNVIDIA
	case s.Dialects == "":
		return nil, nil
	}
	all := s.build()
	if s.Dialects == "all" {
		return all, nil
	}
	var set Set
	for name := range strings.SplitSeq(s.Dialects, ",") {
		named := func(d Dialect) bool { return d.Words().Name == strings.TrimSpace(name) }
		i := slices.IndexFunc(all, named)
		switch {
		case i < 0:
			return nil, fmt.Errorf("--dialects %q: %q is unknown: use all, or some of %s", s.Dialects, name, strings.Join(Names(), ", "))
		case slices.ContainsFunc(set, named):
			return nil, fmt.Errorf("--dialects %q names %s twice", s.Dialects, name)
		}
		set = append(set, all[i])
	}
	if s.NVIDIATimeSlicing && !slices.ContainsFunc(set, func(d Dialect) bool { return d.Words().Name == (nvidia{}).Words().Name }) {
		return nil, errNoNVIDIA
	}
	return set, nil
}

var errNoNVIDIA = errors.New("--nvidia-time-slicing means nothing without the dialect nvidia: name it in --dialects")
