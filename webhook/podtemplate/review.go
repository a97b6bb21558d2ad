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
	// starts is with how much its containers start, as a document; empty where they start with all.
	starts string
	// plugins are the annotations to set for NRI.
	plugins map[string]string
	// classes are those that there are. expanded reports that an earlier round of admission may
	// have written what units of them amount to.
	classes  *classes.Set
	expanded bool
	// before are the shares that an earlier round of admission has written down.
	before map[string]api.Share
	// asked are the classes of the containers.
	asked []askedClass
	// amounts are the limits to write down, in the order of the pod's fields.
	amounts []amount
	// env are the variables to remove, in the order of the pod's fields.
	env []envRemoval
}

// amount is a limit that a container leaves out, or has 0 of.
type amount struct {
	of    slim.Ref
	name  corev1.ResourceName
	value int64
}

// askedClass is a class, and where a container asks for it.
type askedClass struct {
	*classes.Class
	at *field.Path
}

// envRemoval names one variable of a container.
type envRemoval struct {
	of  slim.Ref
	env int
}

// asks reports whether any part of the pod asks for a share.
func asks(pod *slim.Pod) bool {
	return pod.Any(func(c *slim.Container) bool { return podrequest.Asks(c.Resources) }) || podrequest.Asks(pod.Spec.Resources)
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

// volcanoGate refuses what has two systems wait for each other: the pod would never start.
func volcanoGate(pod *slim.Pod) (errs field.ErrorList) {
	const text = "Volcano takes this gate off a pod that has no other, and Vernier places a pod that has only Vernier's: neither would ever go. Remove it: Volcano's scheduler leaves the pod alone until it is placed"
	if pod.Metadata.Annotations[podrequest.VolcanoGate] == "true" {
		errs = append(errs, field.Forbidden(annotationsPath.Key(podrequest.VolcanoGate), text))
	}
	if slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: podrequest.VolcanoGate}) {
		errs = append(errs, field.Forbidden(specPath.Child("schedulingGates").Key(podrequest.VolcanoGate), text))
	}
	return errs
}

// review looks at all of a pod that asks for a share, and says everything that
// is wrong at once.
func review(pod *slim.Pod, namespace string, known fleet.Size, rules Rules) *findings {
	f := &findings{classes: rules.Classes, expanded: gated(pod), minimum: rules.Minimum, compute: rules.ComputeShares.In(namespace), namespace: namespace,
		Request: podrequest.Request{Shares: map[string]api.Share{}}}
	var errs field.ErrorList
	f.Wishes, f.errs = podrequest.Check(pod.Metadata.Annotations, gated(pod), annotationsPath)
	if f.expanded {
		f.before = podrequest.OfAnnotations(pod.Metadata.Annotations).Shares
	}
	f.plugins, errs = guard.RequirePlugin(pod.Metadata.Annotations, annotationsPath)
	f.errs = append(f.errs, errs...)
	f.errs = append(f.errs, guard.Pod(pod, rules.AllowedHostPaths)...)
	f.errs = append(f.errs, volcanoGate(pod)...)
	f.errs = append(f.errs, podrequest.PodLevel(pod.Spec.Resources, specPath.Child("resources"))...)
	for c := range pod.All() {
		f.narrow(c)
	}
	for c := range pod.All() {
		f.container(c, known)
	}
	if n := len(f.Shares); n > api.MaxShareContainers {
		f.errs = append(f.errs, field.Invalid(specPath.Child("containers"), n, fmt.Sprintf(
			"at most %d containers of a pod may ask for a share, each takes one of the %d slices of a GPU. Make several pods of it, or ask for one share and run the programs in one container",
			api.MaxShareContainers, api.MaxSlicesPerDevice)))
	}
	f.start()
	f.onIdle(pod.Metadata.Annotations)
	if f.SameGPU {
		f.sameGPU(known)
	}
	if f.Topology.Level != "" && len(f.errs) == 0 {
		f.topology(known)
	}
	f.burstable()
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

// narrow takes in a container, and has the pod's wishes be those of its class, before a
// share is compared with them.
func (f *findings) narrow(c slim.Ref) {
	of := podrequest.Container{Name: c.Name, Init: c.Init(), Sidecar: c.Init() && c.RestartPolicy == string(corev1.ContainerRestartPolicyAlways)}
	if class := podrequest.ClassOf(c.Resources, f.classes); class != nil {
		of.Class = class.Name
		at := c.Path().Child("resources", "limits").Key(string(api.ClassResource(class.Name)))
		f.asked = append(f.asked, askedClass{class, at})
		var err error
		if f.Wishes, err = f.Narrow(class); err != nil {
			f.errs = append(f.errs, field.Forbidden(at, err.Error()))
		}
	}
	f.Containers = append(f.Containers, of)
}

// container reviews one. Init containers have slices of their own like any other: which of
// them run at the same time is the allocator's arithmetic.
func (f *findings) container(c slim.Ref, known fleet.Size) {
	path := c.Path()
	f.errs = append(f.errs, guard.Container(c.Container, path)...)
	shared := podrequest.Asks(c.Resources)
	remove, warnings, errs := guard.Env(c.Container, shared, path)
	f.warnings = append(f.warnings, warnings...)
	f.errs = append(f.errs, errs...)
	for _, at := range remove {
		f.env = append(f.env, envRemoval{c, at})
	}
	if !shared {
		return
	}
	if f.Mode == api.ModeMPS {
		f.errs = append(f.errs, guard.SharedMemory(c.Container, path)...)
	}
	totals := f.share(c.Container, path.Child("resources"), known)
	if share, given := f.Shares[c.Name]; given {
		f.warnings = append(f.warnings, guard.Devices(c.Container, share, f.Mode, path)...)
	}
	// Written down, so that a ResourceQuota counts compute, memory and slices.
	for _, total := range totals {
		if given := c.Resources.Limits[total.Name]; given.IsZero() && total.Value > 0 {
			f.amounts = append(f.amounts, amount{c, total.Name, total.Value})
		}
	}
}

// share reviews what a container asks for, and returns what its limits are to say of that.
func (f *findings) share(c *slim.Container, path *field.Path, known fleet.Size) []podrequest.Total {
	var share api.Share
	var totals []podrequest.Total
	var errs field.ErrorList
	if class := podrequest.ClassOf(c.Resources, f.classes); class != nil {
		share, totals, errs = podrequest.ShareOfUnits(c.Resources, class, f.expanded, path)
	} else {
		share, totals, errs = f.amount(c, path)
	}
	if len(errs) > 0 {
		f.errs = append(f.errs, errs...)
		return nil
	}
	if err := f.Suits(c.Name, share); err != nil {
		f.errs = append(f.errs, field.Invalid(annotationsPath.Key(api.AnnotationMode), f.Mode, err.Error()))
	}
	f.warn(path, known.Warning(share))
	f.Shares[c.Name] = share
	return totals
}

// amount reviews what a container asks for that has no class.
func (f *findings) amount(c *slim.Container, path *field.Path) (share api.Share, totals []podrequest.Total, errs field.ErrorList) {
	if podrequest.FollowsCompute(c.Resources.Limits, f.before[c.Name]) {
		delete(c.Resources.Limits, api.ResourceMemPercent)
		delete(c.Resources.Requests, api.ResourceMemPercent)
	}
	if share, errs = podrequest.ShareOf(c.Resources, f.classes, path); len(errs) > 0 {
		return share, totals, errs
	}
	if share.Idle > 0 {
		return share, nil, nil
	}
	core, missing := f.compute.Fill(&share, c.Name, f.namespace, path)
	if missing != nil {
		f.errs = append(f.errs, missing)
	}
	f.errs = append(f.errs, f.minimum.Check(share, path)...)
	return share, []podrequest.Total{
		{Name: api.ResourceCore, Value: int64(core)},
		{Name: api.ResourceMemPercent, Value: int64(share.MemPercent) * int64(share.GPUs)},
		{Name: api.ResourceGPUs, Value: int64(share.GPUs)},
	}, nil
}
