// SPDX-License-Identifier: Apache-2.0

// Package annotations owns what the annotations of a pod that asks for a share
// may say: a user's wishes are read, what only the system writes is refused, as
// is what would hand out devices past every slice.
//
// It never looks at containers.
package annotations

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
)

// userKeys are what a user may set.
var userKeys = []string{api.AnnotationMode, api.AnnotationPolicy, api.AnnotationTopology,
	api.AnnotationRDMA, api.AnnotationQoS, api.AnnotationBurst, api.AnnotationGPUModel, api.AnnotationGPUUUID, api.AnnotationSameGPU}

// tolerateMissing is the key that NRI's documentation proposes for letting a
// container start without the plugins that it requires.
const tolerateMissing = "tolerate-missing-plugins.noderesource.dev"

// Wishes are what a user's annotations say.
type Wishes struct {
	Mode          api.Mode
	Policy        api.Policy
	Burst         api.Burst
	QoS           api.QoS
	Models, UUIDs api.AllowList
	// SameGPU: all slices of the pod are to be on one GPU.
	SameGPU bool
	// Topology is how near to each other the GPUs of the pod are to be.
	Topology api.TopologyRequest
	// classTopology: it is that of a class, so that another class's may take its place.
	classTopology bool
	// RDMA: containers with a share get the RDMA devices near their GPUs.
	RDMA bool
}

// Of reads the wishes of an admitted pod. The error names the annotation.
func Of(annotations map[string]string) (Wishes, error) {
	var wishes Wishes
	for _, key := range userKeys {
		if err := wishes.parse(key, annotations[key]); err != nil {
			return Wishes{}, fmt.Errorf("annotation %s: %w", key, err)
		}
	}
	return wishes, nil
}

// Suits says why a container cannot have its share in the mode; nil where it can. The mode
// is in the annotation that the caller names.
func (w *Wishes) Suits(container string, share api.Share) error {
	switch {
	case w.Mode == api.ModeExclusive && !share.Whole():
		return fmt.Errorf("container %s asks for a part of a GPU: use auto or limiter, or ask for %s 100 per GPU, and as much %s or none",
			container, api.ResourceCore, api.ResourceMemPercent)
	case w.Mode.OneDevice() && share.GPUs > 1:
		return fmt.Errorf("container %s asks for %d GPUs, and in mode %s a program sees one: ask for one GPU, or use auto",
			container, share.GPUs, w.Mode)
	}
	return nil
}

// Narrow has the wishes be those of a pod with a container of the class. The error says that
// the pod asks for what the class does not give.
func (w *Wishes) Narrow(class *classes.Class) error {
	switch {
	case class.Mode == api.ModeAuto || class.Mode == w.Mode:
	case w.Mode == api.ModeAuto:
		w.Mode = class.Mode
	default:
		return fmt.Errorf("GPUClass %s has mode %s, and %s or another class of the pod has %s: remove one of the two", class.Name, class.Mode, api.AnnotationMode, w.Mode)
	}
	switch {
	case class.Topology.Level == "", w.Topology.Implies(class.Topology):
	case w.Topology.Level == "", w.classTopology && class.Topology.Implies(w.Topology):
		w.Topology, w.classTopology = class.Topology, true
	default:
		return fmt.Errorf("GPUClass %s has topology %s, and %s or another class of the pod has %s, which is not as near: remove one of the two", class.Name, class.Topology, api.AnnotationTopology, w.Topology)
	}
	return nil
}

// Check reads the annotations of a pod that asks for a share. gated tells
// whether the pod has our gate: then its shares are the webhook's own, from an
// earlier round of the same admission, and are not believed but written anew.
func Check(annotations map[string]string, gated bool, path *field.Path) (Wishes, field.ErrorList) {
	wishes := Wishes{Mode: api.ModeAuto, Policy: api.PolicyPack, Burst: api.BurstNone, QoS: api.QoSGuaranteed}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value, at := annotations[key], path.Key(key)
		switch {
		case key == api.AnnotationPlacement, (key == api.AnnotationShares || key == api.AnnotationDialect) && !gated:
			errs = append(errs, field.Forbidden(at, "only Vernier writes it: remove it (a manifest made from a running pod carries it)"))
		case key == api.AnnotationShares, key == api.AnnotationDialect:
		case strings.HasPrefix(key, api.Prefix):
			if err := wishes.read(key, value, at); err != nil {
				errs = append(errs, err)
			}
		case strings.HasPrefix(key, api.AnnotationNVIDIACDIPrefix), strings.HasPrefix(key, api.AnnotationCDIPrefix):
			errs = append(errs, field.Forbidden(at, "it injects devices past the pod's share: remove it, the share brings its devices"))
		case strings.HasPrefix(key, tolerateMissing):
			errs = append(errs, field.Forbidden(at, "a container with a share must not start without Vernier's node agent: remove it"))
		}
	}
	return wishes, errs
}

// Idle reads the wishes of a pod that asks for no share: they have no effect, and one that
// there is not is refused, as somebody may wait for what it was to do. At most maxIdle are
// looked at, since such a pod may have any number of annotations.
func Idle(annotations map[string]string, path *field.Path) (warnings []string, errs field.ErrorList) {
	for _, key := range ours(annotations) {
		switch at := path.Key(key); {
		case key == api.AnnotationShares, key == api.AnnotationPlacement, key == api.AnnotationDialect:
		case slices.Contains(userKeys, key):
			warnings = append(warnings, fmt.Sprintf("%s: has no effect, since no container asks for a share: add a limit such as %s", at, api.ResourceCore))
		case isResource(key):
			errs = append(errs, field.Forbidden(at, asLimit))
		default:
			errs = append(errs, field.NotSupported(at, key, userKeys))
		}
	}
	return warnings, errs
}

// Misplaced warns about annotations of ours on a workload: its pods have those of the template,
// which stand at the path of. Like Idle it looks at maxIdle of them.
func Misplaced(annotations map[string]string, path, of *field.Path) (warnings []string) {
	for _, key := range ours(annotations) {
		switch at := path.Key(key); {
		case slices.Contains(userKeys, key):
			warnings = append(warnings, fmt.Sprintf("%s: has no effect here: move it to %s", at, of))
		case isResource(key):
			warnings = append(warnings, fmt.Sprintf("%s: %s", at, asLimit))
		default:
			warnings = append(warnings, field.NotSupported(at, key, userKeys).Error())
		}
	}
	return warnings
}

// ours lists the keys with our prefix, sorted, maxIdle of them at most.
func ours(annotations map[string]string) []string {
	keys := api.Ours(annotations)
	return keys[:min(len(keys), maxIdle)]
}

const maxIdle = 32

const asLimit = "a share is asked for as a limit of the container that uses the GPU: move the line to its resources.limits"

func isResource(key string) bool { return slices.Contains(api.Resources, corev1.ResourceName(key)) }

func (w *Wishes) read(key, value string, at *field.Path) *field.Error {
	switch {
	case isResource(key):
		return field.Forbidden(at, asLimit)
	case !slices.Contains(userKeys, key):
		return field.NotSupported(at, key, userKeys)
	}
	if err := w.parse(key, value); err != nil {
		return field.Invalid(at, field.OmitValueType{}, err.Error())
	}
	return nil
}

// parse reads one of the user's keys; "" is the default of each.
func (w *Wishes) parse(key, value string) (err error) {
	switch key {
	case api.AnnotationMode:
		w.Mode, err = api.ParseMode(value)
	case api.AnnotationPolicy:
		w.Policy, err = api.ParsePolicy(value)
	case api.AnnotationGPUModel:
		w.Models, err = api.ParseAllowList(value)
	case api.AnnotationGPUUUID:
		w.UUIDs, err = api.ParseAllowList(value)
	case api.AnnotationSameGPU:
		w.SameGPU, err = api.ParseSameGPU(value)
	case api.AnnotationTopology:
		w.Topology, err = api.ParseTopology(value)
	case api.AnnotationRDMA:
		w.RDMA, err = api.ParseRDMA(value)
	case api.AnnotationQoS:
		w.QoS, err = api.ParseQoS(value)
	case api.AnnotationBurst:
		w.Burst, err = api.ParseBurst(value)
	}
	return err
}
