// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

func TestUnits(t *testing.T) {
	for name, tt := range map[string]struct {
		unit    v1alpha1.GPUUnit
		n       int64
		want    v1alpha1.Share
		refused string
	}{
		"one":                         {v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}, 1, v1alpha1.Share{GPUs: 1, Core: 25, MemMiB: 20480}, ""},
		"a part of one GPU":           {v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}, 3, v1alpha1.Share{GPUs: 1, Core: 75, MemMiB: 61440}, ""},
		"all of one GPU":              {v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}, 4, v1alpha1.Share{GPUs: 1, Core: 100, MemMiB: 81920}, ""},
		"two GPUs":                    {v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}, 8, v1alpha1.Share{GPUs: 2, Core: 100, MemMiB: 81920}, ""},
		"percent of memory":           {v1alpha1.GPUUnit{Core: 30}, 2, v1alpha1.Share{GPUs: 1, Core: 60, MemPercent: 60}, ""},
		"whole GPUs":                  {v1alpha1.GPUUnit{Core: 100}, 16, v1alpha1.Share{GPUs: 16, Core: 100, MemPercent: 100}, ""},
		"units across GPUs":           {v1alpha1.GPUUnit{Core: 30, MemMiB: 3000}, 10, v1alpha1.Share{GPUs: 3, Core: 100, MemMiB: 10000}, ""},
		"one and a quarter GPU":       {v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}, 5, v1alpha1.Share{}, "5 units of 25 % are more than one GPU and no whole number of GPUs: ask for 4 or 8"},
		"between one and three GPUs":  {v1alpha1.GPUUnit{Core: 30}, 4, v1alpha1.Share{}, "ask for 3 or 10"},
		"above three GPUs":            {v1alpha1.GPUUnit{Core: 30}, 11, v1alpha1.Share{}, "ask for 10 or 20"},
		"memory that does not divide": {v1alpha1.GPUUnit{Core: 30, MemMiB: 1000}, 10, v1alpha1.Share{}, "10 units of 30 % are more than a container can have: ask for 3 or less"},
		"never whole":                 {v1alpha1.GPUUnit{Core: 97}, 2, v1alpha1.Share{}, "ask for 1 or less"},
		"too many GPUs":               {v1alpha1.GPUUnit{Core: 50}, 33, v1alpha1.Share{}, "33 units of 50 % are more than a container can have: ask for 32 or less"},
		"beyond all numbers":          {v1alpha1.GPUUnit{Core: 50}, math.MaxInt64, v1alpha1.Share{}, "ask for 32 or less"},
		"none":                        {v1alpha1.GPUUnit{Core: 50}, 0, v1alpha1.Share{}, "ask for 1 or more"},
	} {
		got, err := tt.unit.Share(tt.n)
		if got != tt.want || (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, got, err, tt.want, tt.refused)
		}
	}
}

// Each number that an error names is possible, and none between it and the one asked for is.
func TestUnits_WhenRefused_NamesTheNearest(t *testing.T) {
	for _, core := range []v1alpha1.Percent{1, 3, 7, 10, 25, 30, 33, 50, 51, 60, 97, 100} {
		for _, mem := range []v1alpha1.MiB{0, 1000, 1024} {
			unit := v1alpha1.GPUUnit{Core: core, MemMiB: mem}
			possible := make([]bool, 1701)
			for n := int64(1); n <= 1700; n++ {
				share, err := unit.Share(n)
				if possible[n] = err == nil; err != nil {
					continue
				}
				if total := int64(share.Core) * int64(share.GPUs); total != n*int64(core) || share.GPUs > 1 && share.Core != v1alpha1.WholeGPU {
					t.Fatalf("%d units of %+v are %+v", n, unit, share)
				}
				if mem > 0 && int64(share.MemMiB)*int64(share.GPUs) != n*int64(mem) {
					t.Fatalf("%d units of %+v have %+v", n, unit, share)
				}
			}
			for n := int64(1); n <= 1600; n++ {
				if possible[n] {
					continue
				}
				var below, above int64
				for below = n; !possible[below]; below-- {
				}
				for above = n; above <= 1600 && !possible[above]; above++ {
				}
				_, err := unit.Share(n)
				want := fmt.Sprintf("ask for %d or less", below)
				if above <= 1600 {
					want = fmt.Sprintf("ask for %d or %d", below, above)
				}
				if !strings.HasSuffix(err.Error(), want) {
					t.Fatalf("%d units of %+v: %v, want %q", n, unit, err, want)
				}
			}
		}
	}
}

func TestClassOf(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{
		"vernier.dev/gpu-gold": "gold", "vernier.dev/gpu-mem-gib": "mem-gib", "vernier.dev/gpu-": "",
		v1alpha1.ResourceCore: "", v1alpha1.ResourceMemPercent: "", v1alpha1.ResourceMemMiB: "", v1alpha1.ResourceGPUs: "",
		"vernier.dev/gold": "", "nvidia.com/gpu-gold": "", "cpu": "",
	} {
		if got := v1alpha1.ClassOf(name); got != want {
			t.Errorf("%s is of class %q, want %q", name, got, want)
		}
		if want != "" && v1alpha1.ClassResource(want) != name {
			t.Errorf("class %s has resource %s", want, v1alpha1.ClassResource(want))
		}
	}
}

// A node has all units that a container may ask for there, also where a unit does not divide a
// GPU: else the scheduler would refuse it while the GPUs are free.
func TestUnits_OfWholeGPUs_AreOnThem(t *testing.T) {
	const mem = v1alpha1.MiB(81559)
	for core := v1alpha1.Percent(1); core <= v1alpha1.WholeGPU; core++ {
		for _, mib := range []v1alpha1.MiB{0, 1000, 20000, 27000, 40000, 81559} {
			unit, mems := v1alpha1.GPUUnit{Core: core, MemMiB: mib}, []v1alpha1.MiB(nil)
			for gpus := v1alpha1.DeviceCount(1); gpus <= 16; gpus++ {
				mems = append(mems, mem)
				on := unit.On(mems...)
				if most := int64(gpus) * 100 / int64(core); on > most {
					t.Fatalf("unit %+v: %d on %d GPUs, which are %d at most", unit, on, gpus, most)
				}
				n := int64(gpus) * 100 / int64(core)
				if share, err := unit.Share(n); err == nil && share.GPUs == gpus && share.MemMiB <= mem && on < n {
					t.Fatalf("unit %+v: %d on %d GPUs, on which a container may have %d", unit, on, gpus, n)
				}
			}
		}
	}
	if on := (v1alpha1.GPUUnit{Core: 40}).On(mem, mem, mem); on != 7 {
		t.Errorf("%d units of 40 %% on three GPUs, want 5 on two and 2 on one", on)
	}
}

// No model has a control character, which a terminal would take as an order. TestGPUClassRules has
// the API server refuse some.
func TestHostileModels(t *testing.T) {
	crd := must.Get(os.ReadFile("../../deploy/chart/files/crds/vernier.dev_gpuclasses.yaml"))(t)
	found := regexp.MustCompile(`(?s) models:\n.*?pattern: (\S+)\n`).FindSubmatch(crd)
	if found == nil {
		t.Fatal("models have no pattern")
	}
	pattern := regexp.MustCompile(string(found[1]))
	for r := rune(0); r < 0x100; r++ {
		if model := "NVIDIA H100 80GB" + string(r); pattern.MatchString(model) == (unicode.IsControl(r) || r == ',' || r == '!') {
			t.Errorf("%q is taken: %v", model, pattern.MatchString(model))
		}
	}
}
