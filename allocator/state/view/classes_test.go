// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
)

func TestAvailable(t *testing.T) {
	class := func(name string, models ...string) *v1alpha1.GPUClass {
		return &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUClassSpec{Models: models, Unit: v1alpha1.GPUUnit{Core: 25, MemMiB: 10000}}}
	}
	gpu := func(model string, mem v1alpha1.MiB, healthy bool) v1alpha1.SliceLedger {
		return v1alpha1.SliceLedger{Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{{Model: model, Mem: mem, Healthy: healthy}}}}
	}
	many := make([]v1alpha1.SliceLedger, 6)
	for i := range many {
		many[i] = gpu(fmt.Sprint("GPU ", i), 40960, true)
	}
	for name, tt := range map[string]struct {
		class   *v1alpha1.GPUClass
		ledgers []v1alpha1.SliceLedger
		want    string // empty where there is a GPU
	}{
		"there is one":               {class("a", "A100"), []v1alpha1.SliceLedger{gpu("Tesla T4", 15360, true), gpu("NVIDIA A100", 40960, true)}, ""},
		"one of several models":      {class("a", "A100", "T4"), []v1alpha1.SliceLedger{gpu("Tesla T4", 15360, true)}, ""},
		"the cluster has no GPU":     {class("a", "A100"), nil, "NoGPU: no GPU of the cluster is of its models (A100): add a node with one, or make a class of models that are there: none"},
		"other models":               {class("a", "A100", "H100"), []v1alpha1.SliceLedger{gpu("Tesla T4", 15360, true)}, "NoGPU: no GPU of the cluster is of its models (A100, H100): add a node with one, or make a class of models that are there: Tesla T4"},
		"many other models":          {class("a", "A100"), many, "NoGPU: no GPU of the cluster is of its models (A100): add a node with one, or make a class of models that are there: GPU 0, GPU 1, GPU 2, GPU 3 and 2 more"},
		"smaller ones":               {class("a", "T4"), []v1alpha1.SliceLedger{gpu("Tesla T4", 9000, true), gpu("Tesla T4", 8000, true)}, "TooSmall: one unit is 10000 MiB, and the largest GPU of its models (T4) has 9000: make a class with a smaller unit"},
		"unhealthy":                  {class("a", "A100"), []v1alpha1.SliceLedger{gpu("NVIDIA A100", 40960, false)}, "Unhealthy: all GPUs of its models (A100) are unhealthy: see kubectl vernier devices"},
		"the healthy ones too small": {class("a", "A100"), []v1alpha1.SliceLedger{gpu("NVIDIA A100", 40960, false), gpu("NVIDIA A100", 5000, true)}, "TooSmall: one unit is 10000 MiB, and the healthy GPUs of its models (A100) are smaller: see kubectl vernier devices"},
	} {
		got := Available(tt.class, classes.Of(*tt.class), tt.ledgers)
		text := ""
		if got.Status != metav1.ConditionTrue {
			text = got.Reason + ": " + got.Message
		}
		if text != tt.want || got.Type != v1alpha1.ConditionAvailable || got.Reason == "" || got.Message == "" {
			t.Errorf("%s: %+v, want %q", name, got, tt.want)
		}
	}
	if got := Available(class("late", "A100"), classes.Of(), nil); got.Reason != ReasonNotRead {
		t.Errorf("beyond the bound: %+v", got)
	}
}
