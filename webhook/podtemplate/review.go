// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/guard"
	"vernier.dev/vernier/webhook/slim"
)

var (
	specPath        = field.NewPath("spec")
	annotationsPath = field.NewPath("metadata", "annotations")
)

// findings are what a review of a pod that asks for a share brings to light.
type findings struct {
	podrequest.Request
	errs     field.ErrorList
	warnings []string
	minimum  demand.Minimum
	// compute is the rule of the pod's namespace.
	compute   demand.Compute
	namespace string
	// plugins are the annotations to set for NRI.
	plugins map[string]string
	// classes are those that there are. expanded reports that an earlier round of admission may
	// have written what units of them amount to.
	classes  *classes.Set
	expanded bool
	// asked are the classes of the containers.
	asked []askedClass
	// amounts are the limits to write down, in the order of the pod's fields.
	amounts []amount
	// env are the variables to remove, in the order of the pod's fields.
	env []envRemoval
}

// amount is a limit that a container leaves out, or has 0 of: list is a field of the pod's spec.
type amount struct {
	list      string
	container int
	// requests is false where the container has none: then Kubernetes makes them of the
	// limits.
	requests bool
	name     corev1.ResourceName
	value    int64
}

// askedClass is a class, and where a container asks for it.
type askedClass struct {
	*classes.Class
	at *field.Path
}

// envRemoval names one variable: list is a field of the pod's spec.
type envRemoval struct {
	list           string
	container, env int
}

// asks reports whether any part of the pod asks for a share.
func asks(pod *slim.Pod) bool {
	for _, list := range [][]slim.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if podrequest.Asks(list[i].Resources) {
				return true
			}
		}
	}
	return podrequest.Asks(pod.Spec.Resources)
}

// leftovers refuses the marks of a share on a pod that asks for none: forged, or
// left when somebody took the request away after us. Nobody would place the pod. So are
// wishes that there are not, and a warning says of the others that they have no effect.
func leftovers(pod *slim.Pod) ([]string, field.ErrorList) {
	warnings, errs := podrequest.Idle(pod.Metadata.Annotations, annotationsPath)
	if gated(pod) {
		errs = append(errs, field.Forbidden(specPath.Child("schedulingGates").Key(api.Gate), podrequest.NoShare))
	}
	return warnings, errs
}

func gated(pod *slim.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: api.Gate})
}

// review looks at all of a pod that asks for a share, and says everything that
// is wrong at once.
func review(pod *slim.Pod, namespace string, known fleet.Size, rules Rules) *findings {
	f := &findings{classes: rules.Classes, expanded: gated(pod), minimum: rules.Minimum, compute: rules.ComputeShares.In(namespace), namespace: namespace,
		Request: podrequest.Request{Shares: map[string]api.Share{}}}
	var errs field.ErrorList
	f.Wishes, f.errs = podrequest.Check(pod.Metadata.Annotations, gated(pod), annotationsPath)
	f.plugins, errs = guard.RequirePlugin(pod.Metadata.Annotations, annotationsPath)
	f.errs = append(f.errs, errs...)
	f.errs = append(f.errs, guard.Pod(pod, rules.AllowedHostPaths)...)
	f.errs = append(f.errs, podrequest.PodLevel(pod.Spec.Resources, specPath.Child("resources"))...)
	f.narrow("initContainers", pod.Spec.InitContainers)
	f.narrow("containers", pod.Spec.Containers)
	f.containers("initContainers", pod.Spec.InitContainers, known)
	f.containers("containers", pod.Spec.Containers, known)
	if n := len(f.Shares); n > api.MaxShareContainers {
		f.errs = append(f.errs, field.Invalid(specPath.Child("containers"), n, fmt.Sprintf(
			"at most %d containers of a pod may ask for a share, each takes one of the %d slices of a GPU. Make several pods of it, or ask for one share and run the programs in one container",
			api.MaxShareContainers, api.MaxSlicesPerDevice)))
	}
	if f.SameGPU {
		f.sameGPU(known)
	}
	if f.Topology.Level != "" && len(f.errs) == 0 {
		f.topology(known)
	}
	if f.Burst == api.BurstIdle && len(f.errs) == 0 && !f.hasQuota() {
		f.errs = append(f.errs, field.Invalid(annotationsPath.Key(api.AnnotationBurst), f.Burst,
			fmt.Sprintf("no container has a quota to go beyond, so all of them may use idle time as it is: remove it, or ask for %s", api.ResourceCore)))
	}
	return f
}

// warn adds a warning, where there is one.
func (f *findings) warn(at *field.Path, text string) {
	if text != "" {
		f.warnings = append(f.warnings, at.String()+": "+text)
	}
}

func (f *findings) hasQuota() bool {
	for _, share := range f.Shares {
		if share.Core > 0 {
			return true
		}
	}
	return false
}

// narrow takes in the containers, and has the pod's wishes be those of their classes, before a
// share is compared with them.
func (f *findings) narrow(list string, containers []slim.Container) {
	for i := range containers {
		c, init := &containers[i], list == "initContainers"
		of := podrequest.Container{Name: c.Name, Init: init, Sidecar: init && c.RestartPolicy == string(corev1.ContainerRestartPolicyAlways)}
		if class := podrequest.ClassOf(c.Resources, f.classes); class != nil {
			of.Class = class.Name
			at := specPath.Child(list).Index(i).Child("resources", "limits").Key(string(api.ClassResource(class.Name)))
			f.asked = append(f.asked, askedClass{class, at})
			var err error
			if f.Wishes, err = f.Narrow(class); err != nil {
				f.errs = append(f.errs, field.Forbidden(at, err.Error()))
			}
		}
		f.Containers = append(f.Containers, of)
	}
}

// containers reviews one list. Init containers have slices of their own like
// any other: which of them run at the same time is the allocator's arithmetic.
func (f *findings) containers(list string, containers []slim.Container, known fleet.Size) {
	listPath := specPath.Child(list)
	for i := range containers {
		c, path := &containers[i], listPath.Index(i)
		f.errs = append(f.errs, guard.Container(c, path)...)
		shared := podrequest.Asks(c.Resources)
		remove, warnings, errs := guard.Env(c, shared, path)
		f.warnings = append(f.warnings, warnings...)
		f.errs = append(f.errs, errs...)
		for _, at := range remove {
			f.env = append(f.env, envRemoval{list: list, container: i, env: at})
		}
		if shared && f.Mode == api.ModeMPS {
			f.errs = append(f.errs, guard.SharedMemory(c, path)...)
		}
		if shared {
			totals := f.share(c, path.Child("resources"), known)
			if share, given := f.Shares[c.Name]; given {
				f.warnings = append(f.warnings, guard.Devices(c, share, f.Mode, path)...)
			}
			// Written down, so that a ResourceQuota counts compute, memory and slices.
			for _, total := range totals {
				if given := c.Resources.Limits[total.Name]; given.IsZero() && total.Value > 0 {
					f.amounts = append(f.amounts, amount{list: list, container: i, requests: c.Resources.Requests != nil, name: total.Name, value: total.Value})
				}
			}
		}
	}
}

// share reviews what a container asks for, and returns what its limits are to say of that.
func (f *findings) share(c *slim.Container, path *field.Path, known fleet.Size) [3]podrequest.Total {
	var share api.Share
	var totals [3]podrequest.Total
	var errs field.ErrorList
	if class := podrequest.ClassOf(c.Resources, f.classes); class != nil {
		share, totals, errs = podrequest.ShareOfUnits(c.Resources, class, f.expanded, path)
	} else {
		share, totals, errs = f.amount(c, path)
	}
	if len(errs) > 0 {
		f.errs = append(f.errs, errs...)
		return [3]podrequest.Total{}
	}
	if err := f.Suits(c.Name, share); err != nil {
		f.errs = append(f.errs, field.Invalid(annotationsPath.Key(api.AnnotationMode), f.Mode, err.Error()))
	}
	f.warn(path, known.Warning(share))
	f.Shares[c.Name] = share
	return totals
}

// amount reviews what a container asks for that has no class.
func (f *findings) amount(c *slim.Container, path *field.Path) (share api.Share, totals [3]podrequest.Total, errs field.ErrorList) {
	if share, errs = podrequest.ShareOf(c.Resources, path); len(errs) > 0 {
		return share, totals, errs
	}
	core, missing := f.compute.Fill(&share, c.Name, f.namespace, path)
	if missing != nil {
		f.errs = append(f.errs, missing)
	}
	f.errs = append(f.errs, f.minimum.Check(share, path)...)
	return share, [3]podrequest.Total{{Name: api.ResourceCore, Value: int64(core)}, {Name: api.ResourceGPUs, Value: int64(share.GPUs)}}, nil
}
