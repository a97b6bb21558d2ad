// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// The API server's LimitRanger runs before webhooks, and writes down what it has set:
// "LimitRanger plugin set: cpu, memory request for container a; cpu limit for init container b".
const (
	annotationLimitRanger = "kubernetes.io/limit-ranger"
	limitRangerSet        = "LimitRanger plugin set: "
)

// limitRanger warns of amounts by which a container asks for a GPU and that a LimitRange has
// set: its max is the default of every container, sidecars too. A tenant can write the
// annotation as well, so that it decides nothing.
func (r *Reader) limitRanger(pod *slim.Pod) (warnings []string) {
	text := pod.Metadata.Annotations[annotationLimitRanger]
	text = strings.TrimPrefix(text[:min(len(text), api.MaxAnnotationBytes)], limitRangerSet)
	set := map[string]bool{}
	for part := range strings.SplitSeq(text, "; ") {
		if names, of, found := strings.Cut(part, " limit for "); found {
			for name := range strings.SplitSeq(names, ", ") {
				set[of+" "+name] = true
			}
		}
	}
	if len(set) == 0 {
		return nil
	}
	warn := func(list, kind string, containers []slim.Container) {
		for i := range containers {
			limits := containers[i].Resources.Limits
			for _, name := range append(api.Asked(limits), r.rules.Dialects.Asked(limits)...) {
				if set[kind+" "+containers[i].Name+" "+string(name)] {
					warnings = append(warnings, notWritten(list, i, containers[i].Name, name, limits))
				}
			}
		}
	}
	warn("initContainers", "init container", pod.Spec.InitContainers)
	warn("containers", "container", pod.Spec.Containers)
	return warnings
}

func notWritten(list string, i int, container string, name corev1.ResourceName, limits corev1.ResourceList) string {
	amount := limits[name]
	return fmt.Sprintf("%s: a LimitRange gives container %s %s, which the pod does not ask for. Its max is the default too, unless the LimitRange has default %s: 0",
		specPath.Child(list).Index(i).Child("resources", "limits").Key(string(name)), container, amount.String(), name)
}
