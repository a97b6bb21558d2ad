// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
)

// maxNames bounds how many classes are named to one who has misspelt one.
const maxNames = 8

// unsupported refuses a resource that there is not: it names those that there are, and the nearest.
func unsupported(at *field.Path, name corev1.ResourceName, known *classes.Set) *field.Error {
	err := field.NotSupported(at, name, api.Resources)
	names := slices.Clone(api.Resources)
	var ofClasses []string
	for class := range known.All() {
		resource := api.ClassResource(class)
		names, ofClasses = append(names, resource), append(ofClasses, string(resource))
	}
	slices.Sort(ofClasses)
	if len(ofClasses) > 0 {
		err.Detail += ", or of a GPUClass: " + api.NamesText(ofClasses, maxNames)
	} else {
		err.Detail += ", or gpu-NAME of a GPUClass: there is none"
	}
	err.Detail += "; of one that has just been made pods are admitted within seconds"
	nearest := slices.MinFunc(names, func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(distance(string(a), string(name)), distance(string(b), string(name))), cmp.Compare(a, b))
	})
	if distance(string(nearest), string(name)) <= maxTypos {
		err.Detail += fmt.Sprintf(". Did you mean %s?", nearest)
	}
	return err
}

// maxTypos is in how many letters a name may differ from the one that was meant.
const maxTypos = 3

// distance is how many letters of a have to be put in, left out or changed for b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before, row[j+1] = row[j+1], min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// names refuses resources that are not ours, and requests that are not their
// limits: Kubernetes would refuse the latter later, without naming the remedy.
func names(r corev1.ResourceRequirements, known *classes.Set, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range api.Asked(r.Limits) {
		if !slices.Contains(api.Resources, name) {
			errs = append(errs, unsupported(path.Child("limits").Key(string(name)), name, known))
		}
	}
	return append(errs, requests(r, known, path)...)
}

// requests refuses those that are not their limits.
func requests(r corev1.ResourceRequirements, known *classes.Set, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range api.Ours(r.Requests) {
		key := path.Child("requests").Key(string(name))
		request := r.Requests[name]
		limit, limited := r.Limits[name]
		switch {
		case request.IsZero() && limit.IsZero():
		case !limited && !slices.Contains(api.Resources, name):
			errs = append(errs, unsupported(key, name, known))
		case !limited:
			errs = append(errs, field.Invalid(key, request.String(),
				"a share is asked for as a limit: move the line to limits"))
		case request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(key, request.String(), fmt.Sprintf(
				"must equal the limit %s, a share is not overcommitted: remove the line from requests", limit.String())))
		}
	}
	return errs
}

// read takes the amounts from the limits.
func read(limits corev1.ResourceList, path *field.Path) (totals, field.ErrorList) {
	var w totals
	var errs field.ErrorList
	errs = amount(errs, limits, path, api.ResourceCore, api.ParsePercent, &w.core)
	errs = amount(errs, limits, path, api.ResourceMemPercent, api.ParsePercent, &w.mem)
	errs = amount(errs, limits, path, api.ResourceMemMiB, api.ParseMiB, &w.mib)
	errs = amount(errs, limits, path, api.ResourceGPUs, api.ParseDeviceCount, &w.gpus)
	errs = amount(errs, limits, path, api.ResourceIdleCore, api.ParsePercent, &w.idle)
	errs = amount(errs, limits, path, api.ResourceIdleMemMiB, api.ParseMiB, &w.idleMiB)
	return w, errs
}

// amount reads one limit, where it is more than none.
func amount[T any](errs field.ErrorList, limits corev1.ResourceList, path *field.Path,
	name corev1.ResourceName, parse func(string) (T, error), into *T) field.ErrorList {
	quantity, set := limits[name]
	if !set || quantity.IsZero() {
		return errs
	}
	digits, err := whole(quantity)
	binary, inMiB := quantity.Format == resource.BinarySI, name == api.ResourceMemMiB || name == api.ResourceIdleMemMiB
	switch milli := quantity.MilliValue(); {
	case inMiB && binary && err == nil:
		err = fmt.Errorf("this is MiB: write %d", mibOf(quantity.Value()))
	case name == api.ResourceMemPercent && err == nil && (binary || quantity.CmpInt64(leastBytes) >= 0):
		err = fmt.Errorf("this is percent of a GPU's memory: write %s: %d", api.ResourceMemMiB, mibOf(quantity.Value()))
	case !inMiB && name != api.ResourceGPUs && err != nil && 0 < milli && milli < 1000:
		err = fmt.Errorf("must be a whole number of percent: for %s of a GPU write %d", quantity.AsDec(), (milli+9)/10)
	}
	if err == nil {
		*into, err = parse(digits)
	}
	if err != nil {
		errs = append(errs, field.Invalid(path.Key(string(name)), quantity.String(), err.Error()))
	}
	return errs
}

// leastBytes is from where on an amount is taken for bytes: there are no so many percent.
const leastBytes = 1 << 20

// mibOf is bytes in MiB, rounded up, for an author who has written bytes.
func mibOf(bytes int64) int64 { return (bytes-1)>>20 + 1 }

// whole is a quantity in plain digits: its own text may be "2k".
func whole(q resource.Quantity) (string, error) {
	n := q.Value()
	switch {
	case q.Sign() < 0:
		return "", errors.New("must be 1 or more; 0 is none")
	case q.CmpInt64(math.MaxInt64) > 0:
		// Value is meaningless here; whatever reads the digits refuses so many.
		n = math.MaxInt64
	case q.CmpInt64(n) != 0:
		return "", errors.New("must be a whole number: the smallest step is 1")
	}
	return strconv.FormatInt(n, 10), nil
}

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
func ShareOfUnits(r corev1.ResourceRequirements, class *classes.Class, expanded bool, path *field.Path) (api.Share, []Total, field.ErrorList) {
	limits, name := path.Child("limits"), api.ClassResource(class.Name)
	quantity := r.Limits[name]
	share, err := units(class, quantity)
	if err != nil {
		return share, nil, field.ErrorList{field.Invalid(limits.Key(string(name)), quantity.String(), err.Error())}
	}
	totals := []Total{
		{api.ResourceCore, int64(share.Core) * int64(share.GPUs)},
		{api.ResourceMemPercent, int64(share.MemPercent) * int64(share.GPUs)},
		{api.ResourceMemMiB, int64(share.MemMiB) * int64(share.GPUs)},
		{api.ResourceGPUs, int64(share.GPUs)},
	}
	errs := requests(r, nil, path)
	for _, other := range api.Asked(r.Limits) {
		amount := r.Limits[other]
		if other != name && !(expanded && slices.Contains(totals, Total{other, amount.Value()})) {
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
