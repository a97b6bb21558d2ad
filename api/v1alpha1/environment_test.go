// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
)

func TestEnvRuleOf(t *testing.T) {
	for name, want := range map[string]struct{ shared, beside EnvRule }{
		"NVIDIA_VISIBLE_DEVICES":     {EnvDropped, EnvDropped},
		"CUDA_MPS_PIPE_DIRECTORY":    {EnvDropped, EnvPasses},
		"CUDA_MPS_":                  {EnvDropped, EnvPasses},
		"LD_PRELOAD":                 {EnvWarned, EnvPasses},
		"LD_AUDIT":                   {EnvWarned, EnvPasses},
		"VERNIER_SLICE":              {EnvReserved, EnvReserved},
		"NVIDIA_DRIVER_CAPABILITIES": {EnvPasses, EnvPasses},
		"NVIDIA_REQUIRE_CUDA":        {EnvPasses, EnvPasses},
		"CUDA_VISIBLE_DEVICES":       {EnvPasses, EnvPasses},
		"cuda_mps_pipe_directory":    {EnvPasses, EnvPasses},
		"":                           {EnvPasses, EnvPasses},
	} {
		if got := EnvRuleOf(name, true); got != want.shared {
			t.Errorf("%q with a share: %d, want %d", name, got, want.shared)
		}
		if got := EnvRuleOf(name, false); got != want.beside {
			t.Errorf("%q beside a share: %d, want %d", name, got, want.beside)
		}
	}
}

func TestChoosesBeyond(t *testing.T) {
	const a, b, other = "GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"
	for value, want := range map[string]bool{
		"": false, "0": false, "1": false, "0,1": false, " 1 , 0 ": false, "2": true, "0,2": true,
		"-1": false, "NoDevFiles": false, "none": false, "0,-1,7": false, "0,x,7": false,
		a: false, "GPU-b": false, b + "," + a: false, other: true, a + "," + other: true, "GPU-aaaa-11": true,
		"MIG-1": true, "99999999999999999999": true, "-99999999999999999999": false,
		strings.Repeat("0,", 500_000) + "9": true,
	} {
		if got := ChoosesBeyond(value, []string{a, b}, false); got != want {
			t.Errorf("%.40q of two devices: %t, want %t", value, got, want)
		}
	}
	for value, want := range map[string]bool{"0": false, "MIG-1": false, "MIG-1,MIG-2": false, "1": true, other: true} {
		if got := ChoosesBeyond(value, []string{a}, true); got != want {
			t.Errorf("%q of an instance: %t, want %t", value, got, want)
		}
	}
}
