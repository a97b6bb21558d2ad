// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/slim"
)

// patch turns the findings into the operations that are missing: none when the
// pod is already as it should be, so that a second round of admission changes
// nothing. had are the annotations that the pod came with.
func (f *findings) patch(pod *slim.Pod, had map[string]string, translated dialect.Translation) ([]jsonpatch.Operation, error) {
	shares, err := (&api.Shares{Version: api.Version, Containers: f.Shares}).Encode()
	if err != nil {
		return nil, err
	}
	set := f.plugins
	set[api.AnnotationShares] = shares
	if f.starts != "" {
		set[api.AnnotationStart] = f.starts
	}
	if len(f.asked) > 0 && f.Topology.Level != "" {
		// That of a class: the node agent, which checks it, reads the annotation alone.
		set[api.AnnotationTopology] = f.Topology.String()
	}
	maps.Copy(set, translated.Annotations)
	maps.DeleteFunc(set, func(key, value string) bool { return had[key] == value })
	ops := append(annotate(had, set), translated.Patch...)
	for _, a := range f.amounts {
		resources := a.of.Pointer() + "/resources/"
		name, value := "/"+slim.Pointer(string(a.name)), strconv.FormatInt(a.value, 10)
		ops = append(ops, jsonpatch.NewOperation("add", resources+"limits"+name, value))
		if a.of.Resources.Requests != nil { // else Kubernetes makes them of the limits
			ops = append(ops, jsonpatch.NewOperation("add", resources+"requests"+name, value))
		}
	}
	switch {
	case len(pod.Spec.SchedulingGates) == 0:
		ops = append(ops, jsonpatch.NewOperation("add", "/spec/schedulingGates", []corev1.PodSchedulingGate{{Name: api.Gate}}))
	case !gated(pod):
		ops = append(ops, jsonpatch.NewOperation("add", "/spec/schedulingGates/-", corev1.PodSchedulingGate{Name: api.Gate}))
	}
	// Backwards: a removal moves what follows it.
	for _, e := range slices.Backward(f.env) {
		ops = append(ops, jsonpatch.NewOperation("remove", e.of.Pointer()+"/env/"+strconv.Itoa(e.env), nil))
	}
	return ops, nil
}

// annotate adds or replaces annotations; the patch needs the map to be there.
func annotate(have, set map[string]string) []jsonpatch.Operation {
	if len(set) == 0 {
		return nil
	}
	if len(have) == 0 {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations", set)}
	}
	ops := make([]jsonpatch.Operation, 0, len(set)+4) // the caller adds about as many
	for key, value := range set {
		ops = append(ops, jsonpatch.NewOperation("add", "/metadata/annotations/"+slim.Pointer(key), value))
	}
	slices.SortFunc(ops, func(a, b jsonpatch.Operation) int { return strings.Compare(a.Path, b.Path) })
	return ops
}

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
	for c := range pod.All() {
		kind, limits := "container", c.Resources.Limits
		if c.Init() {
			kind = "init container"
		}
		for _, name := range append(api.Asked(limits), r.rules.Dialects.Asked(limits)...) {
			if amount := limits[name]; set[kind+" "+c.Name+" "+string(name)] {
				warnings = append(warnings, fmt.Sprintf("%s: a LimitRange gives container %s %s, which the pod does not ask for. Its max is the default too, unless the LimitRange has default %s: 0",
					c.Path().Child("resources", "limits").Key(string(name)), c.Name, amount.String(), name))
			}
		}
	}
	return warnings
}
