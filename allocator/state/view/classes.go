// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasons of the condition Available of a GPUClass.
const (
	ReasonServed    = "Served"
	ReasonNotRead   = "NotRead"
	ReasonNoGPU     = "NoGPU"
	ReasonTooSmall  = "TooSmall"
	ReasonUnhealthy = "Unhealthy"
)

// maxModels bounds how many models of the cluster a message names.
const maxModels = 4

// Available is the condition of the class: whether a healthy GPU of the ledgers could serve one
// unit, were it empty. It is no matter what pods have now.
func Available(class *v1alpha1.GPUClass, known *classes.Set, ledgers []v1alpha1.SliceLedger) metav1.Condition {
	no := func(reason, format string, a ...any) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, a...)}
	}
	of := known.Get(class.Name)
	if of == nil {
		return no(ReasonNotRead, "only the oldest %d GPUClasses count: delete others, or use one of them", v1alpha1.MaxGPUClasses)
	}
	models, largest, healthy := map[string]bool{}, v1alpha1.MiB(0), false
	for i := range ledgers {
		for _, d := range ledgers[i].Status.Devices {
			allowed, seen := models[d.Model]
			if !seen {
				allowed = of.Models.Allows(d.Model)
				models[d.Model] = allowed
			}
			if !allowed {
				continue
			}
			largest = max(largest, d.Mem)
			if healthy = healthy || d.Healthy; d.Healthy && of.Unit.On(d.Mem) > 0 {
				return metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: metav1.ConditionTrue, Reason: ReasonServed, Message: "there are healthy GPUs of its models"}
			}
		}
	}
	its := strings.Join(class.Spec.Models, ", ")
	switch {
	case largest == 0:
		there := "none"
		if names := v1alpha1.NamesText(slices.Sorted(maps.Keys(models)), maxModels); names != "" {
			there = names
		}
		return no(ReasonNoGPU, "no GPU of the cluster is of its models (%s): add a node with one, or make a class of models that are there: %s", its, there)
	case of.Unit.On(largest) == 0:
		return no(ReasonTooSmall, "one unit is %d MiB, and the largest GPU of its models (%s) has %d: make a class with a smaller unit", of.Unit.MemMiB, its, largest)
	case !healthy:
		return no(ReasonUnhealthy, "all GPUs of its models (%s) are unhealthy: see kubectl vernier devices", its)
	}
	return no(ReasonTooSmall, "one unit is %d MiB, and the healthy GPUs of its models (%s) are smaller: see kubectl vernier devices", of.Unit.MemMiB, its)
}
