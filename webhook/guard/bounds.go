// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// Bounds refuses a pod with a share that carries more than any part of Vernier is to
// read. It comes before everything else that reads the pod.
func Bounds(pod *slim.Pod) field.ErrorList {
	spec, annotations := field.NewPath("spec"), field.NewPath("metadata", "annotations")
	var errs field.ErrorList
	atMost := func(most, have int, at *field.Path, remedy string) {
		if have > most {
			errs = append(errs, field.Invalid(at, have, fmt.Sprintf("a pod with a share may have at most %d: %s", most, remedy)))
		}
	}
	atMost(api.MaxSharePodContainers, len(pod.Spec.Containers)+len(pod.Spec.InitContainers), spec.Child("containers"),
		"make several pods of it (init containers count as well)")
	atMost(api.MaxShareVolumes, len(pod.Spec.Volumes), spec.Child("volumes"), "mount folders that contain several of them")
	atMost(api.MaxShareGates, len(pod.Spec.SchedulingGates), spec.Child("schedulingGates"),
		"remove gates that no controller waits for")
	atMost(api.MaxShareAnnotations, len(pod.Metadata.Annotations), annotations, "remove some, or keep them in a ConfigMap")
	if len(errs) > 0 {
		return errs
	}
	capabilities := 0
	for _, list := range [][]slim.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			capabilities += len(list[i].SecurityContext.Capabilities.Add)
		}
	}
	atMost(api.MaxShareCapabilities, capabilities, spec.Child("containers"), "these are the capabilities that its containers add: remove some")
	if err := api.CheckSchedulingTerms(&corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations, TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints}); err != nil {
		errs = append(errs, field.Forbidden(spec, err.Error()))
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(pod.Metadata.Annotations)) {
		value := pod.Metadata.Annotations[key]
		total += len(key) + len(value)
		if len(value) > api.MaxAnnotationBytes && (strings.HasPrefix(key, api.Prefix) || strings.HasPrefix(key, requiredPlugins)) {
			errs = append(errs, field.Invalid(annotations.Key(key), field.OmitValueType{},
				fmt.Sprintf("has %d bytes, %d are allowed: shorten or remove it", len(value), api.MaxAnnotationBytes)))
		}
	}
	if total > validation.TotalAnnotationSizeLimitB {
		// The API server says so too, once everybody has read them.
		errs = append(errs, field.TooLong(annotations, "", validation.TotalAnnotationSizeLimitB))
	}
	return errs
}
