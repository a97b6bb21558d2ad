// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

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
	// has that says none; 0 are all of the memory and no quota.
	HAMiDefaultMem, HAMiDefaultCores uint
	// NVIDIAReplicas is how many nvidia.com/gpu.shared one GPU was cut into; 0 where
	// nobody has said.
	NVIDIAReplicas uint
	// NVIDIATimeSlicing: one nvidia.com/gpu was such a replica, and no whole GPU.
	NVIDIATimeSlicing bool
}

// AddFlags adds a flag for each setting.
func (s *Settings) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&s.Dialects, "dialects", "", "systems whose pods are understood, separated by commas, or all: "+strings.Join(Names(), ", "))
	flags.StringVar(&s.GPUShareUnit, "gpushare-unit", "GiB", "what one aliyun.com/gpu-mem is: GiB or MiB, as gpushare's device plugin was told")
	flags.UintVar(&s.HAMiDefaultMem, "hami-default-mem", 0, "MiB of a HAMi vGPU that asks for no memory, as HAMi's defaultMem; 0 is the whole GPU's")
	flags.UintVar(&s.HAMiDefaultCores, "hami-default-cores", 0, "percent of a HAMi vGPU that asks for no cores, as HAMi's defaultCores; 0 is no quota")
	flags.UintVar(&s.NVIDIAReplicas, "nvidia-replicas", 0, "nvidia.com/gpu.shared of one GPU, as NVIDIA's device plugin was told")
	flags.BoolVar(&s.NVIDIATimeSlicing, "nvidia-time-slicing", false, "nvidia.com/gpu is one of --nvidia-replicas, as NVIDIA's device plugin calls it without renameByDefault; otherwise it is a whole GPU, and not translated")
}

// build makes the dialects, in the order in which pods are tried.
func (s Settings) build() Set {
	return Set{
		gpushare{unit: s.GPUShareUnit},
		hami{mem: api.MiB(s.HAMiDefaultMem), cores: api.Percent(s.HAMiDefaultCores)},
		volcano{},
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
