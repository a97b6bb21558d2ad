// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
)

// Total is an amount over all GPUs of a container, as a limit says it; 0 where it says none.
type Total struct {
	Name  corev1.ResourceName
	Value int64
}

// ClassOf is the class that a container asks for units of; nil without one, and where there is
// no such class, which ShareOf refuses.
func ClassOf(r corev1.ResourceRequirements, known *classes.Set) (class *classes.Class) {
	for _, name := range api.Asked(r.Limits) {
		if c := known.Get(api.ClassOf(name)); c != nil && (class == nil || c.Name < class.Name) {
			class = c
		}
	}
	return class
}

// ShareOfUnits is the share of a container with units of the class in its limits, and its
// amounts in the other resources. expanded allows these in the limits, where an earlier round
// of admission may have written them.
func ShareOfUnits(r corev1.ResourceRequirements, class *classes.Class, expanded bool, path *field.Path) (api.Share, [3]Total, field.ErrorList) {
	limits, name := path.Child("limits"), api.ClassResource(class.Name)
	quantity := r.Limits[name]
	share, err := units(class, quantity)
	if err != nil {
		return share, [3]Total{}, field.ErrorList{field.Invalid(limits.Key(string(name)), quantity.String(), err.Error())}
	}
	totals := [3]Total{
		{api.ResourceCore, int64(share.Core) * int64(share.GPUs)},
		{api.ResourceMemMiB, int64(share.MemMiB) * int64(share.GPUs)},
		{api.ResourceGPUs, int64(share.GPUs)},
	}
	errs := requests(r, path)
	for _, other := range api.Asked(r.Limits) {
		amount := r.Limits[other]
		if other != name && !(expanded && slices.Contains(totals[:], Total{other, amount.Value()})) {
			errs = append(errs, field.Forbidden(limits.Key(string(other)), fmt.Sprintf("%s says all that the container asks for: keep one of the two", name)))
		}
	}
	return share, totals, errs
}

// Units are how many units of each class a pod counts for, as Kubernetes adds up its containers.
func Units(pod *corev1.Pod) map[string]resource.Quantity {
	of := map[string]resource.Quantity{}
	for name, n := range podresource.PodRequests(pod, podresource.PodResourcesOptions{}) {
		if class := api.ClassOf(name); class != "" {
			of[class] = n
		}
	}
	return of
}

func units(class *classes.Class, quantity resource.Quantity) (api.Share, error) {
	digits, err := whole(quantity)
	if err != nil {
		return api.Share{}, err
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return api.Share{}, err
	}
	return class.Unit.Share(n)
}
