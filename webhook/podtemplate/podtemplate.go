// SPDX-License-Identifier: Apache-2.0

// Package podtemplate owns the reading of a pod or of a pod template: its dialect, the requests of
// its containers, its annotations and its mistakes. It makes the changes by which admission writes
// that down. The webhook admits by it, the warnings at workloads and the kubectl plugin foretell
// by it.
//
// It has no side effects, and never asks the API server anything.
package podtemplate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	apply "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/guard"
	"vernier.dev/vernier/webhook/slim"
	"vernier.dev/vernier/webhook/start"
)

// Rules are what an operator sets. The zero value is the chart's default.
type Rules struct {
	// Dialects of other systems that pods may be written in.
	Dialects dialect.Set
	// Minimum of a share.
	Minimum demand.Minimum
	// ComputeShares are what namespaces give to containers that ask for memory only.
	ComputeShares demand.ComputeShares
	// Classes that containers may ask for; nil is none.
	Classes *classes.Set
	// Advice is with how much new pods start; nil has all start with their request.
	Advice *start.Advice
	// AllowedHostPaths are the only folders of a node that pods with shares may mount;
	// empty is all folders that do not open the node.
	AllowedHostPaths []string
}

// Reader reads pods by an operator's rules.
type Reader struct {
	fleet *fleet.Fleet
	rules Rules
	// traces are the texts of which one stands in every pod that concerns us.
	traces [][]byte
	// schedulers of other systems: of workloads, those that stay are warned about.
	schedulers [][]byte
}

// New makes a reader. The fleet is what warnings compare a share with; the zero value of
// one gives none.
func New(known *fleet.Fleet, rules Rules) *Reader {
	r := &Reader{fleet: known, rules: rules, traces: [][]byte{[]byte(api.Prefix)}}
	for _, trace := range rules.Dialects.Traces() {
		r.traces = append(r.traces, []byte(trace))
	}
	for _, name := range rules.Dialects.Schedulers() {
		r.schedulers = append(r.schedulers, []byte(name))
	}
	return r
}

// Reading is what a pod asks for, and what admission makes of it. The zero value asks for
// nothing and is let through as it is.
type Reading struct {
	// Name of the pod, or what its name will begin with.
	Name string
	// Request is what it asks for, what its dialect means included. It has no shares where the
	// pod asks for none, and neither units, group nor placement: these are of an admitted pod.
	podrequest.Request
	// Warnings for its author.
	Warnings []string
	// Errors: the pod is refused where there is one.
	Errors field.ErrorList
	// Patch of the pod; empty where nothing is missing.
	Patch []jsonpatch.Operation
}

var errNoPod = errors.New("the object has no metadata: it is not a pod")

// Read reads a pod, given as JSON, in a namespace. An error says that it is no pod.
func (r *Reader) Read(namespace string, raw []byte) (Reading, error) {
	// The API server's own encoder wrote the object: it does not escape any
	// character of a trace. Match conditions keep most pods away; this makes
	// those that come all the same cost next to nothing.
	if !r.concerns(raw) {
		return Reading{}, nil
	}
	pod, err := slim.Decode(raw)
	if err != nil || pod.Metadata == nil {
		return Reading{}, cmp.Or(err, errNoPod)
	}
	out := r.read(namespace, pod)
	if err := hasController(pod, &out.Request); err != nil {
		out.Errors, out.Patch = append(out.Errors, err), nil
	}
	return out, nil
}

func (r *Reader) concerns(raw []byte) bool { return containsAny(raw, r.traces) }

func containsAny(raw []byte, texts [][]byte) bool {
	return slices.ContainsFunc(texts, func(text []byte) bool { return bytes.Contains(raw, text) })
}

func (r *Reader) read(namespace string, pod *slim.Pod) Reading {
	out := Reading{Name: cmp.Or(pod.Metadata.Name, pod.Metadata.GenerateName)}
	if !r.rules.Dialects.Asks(pod) && !asks(pod) {
		out.Warnings, out.Errors = leftovers(pod)
		return out
	}
	if out.Errors = guard.Bounds(pod); len(out.Errors) > 0 {
		return out
	}
	had := pod.Metadata.Annotations
	out.Warnings = r.limitRanger(pod)
	translated := r.rules.Dialects.Translate(pod)
	if !asks(pod) && len(translated.Errors) == 0 {
		// It has amounts of no GPUs, which are taken out.
		idle, errs := leftovers(pod)
		out.Dialect, out.Patch, out.Errors = translated.Dialect, translated.Patch, errs
		out.Warnings = slices.Concat(out.Warnings, translated.Warnings, idle)
		return out
	}
	f := review(pod, namespace, r.fleet.Size(), r.rules)
	f.warn(annotationsPath.Key(api.AnnotationGPUModel), r.fleet.Models(f.Models))
	f.warn(annotationsPath.Key(api.AnnotationGPUUUID), r.fleet.UUIDs(f.UUIDs))
	for _, asked := range f.asked {
		f.warn(asked.at, r.fleet.Class(asked.Class))
	}
	f.Dialect = translated.Dialect
	out.Request = f.Request
	out.Warnings = slices.Concat(out.Warnings, translated.Warnings, f.warnings)
	out.Errors = append(translated.Errors, f.errs...)
	if len(out.Errors) > 0 {
		return out
	}
	var err error
	if _, set := had[api.AnnotationStart]; !set {
		f.starts, err = r.rules.Advice.Of(namespace, pod, &f.Request, r.rules.Minimum)
	}
	if err != nil {
		out.Errors = append(out.Errors, field.InternalError(annotationsPath.Key(api.AnnotationStart), err))
		return out
	}
	if out.Patch, err = f.patch(pod, had, translated); err != nil {
		out.Errors = append(out.Errors, field.InternalError(annotationsPath.Key(api.AnnotationShares), err))
	}
	return out
}

// Room says, as warnings, whether there is room now for the pod that was read. Of one that asks for a
// resource that there is not, it says which classes there are, with the room for each.
func (r *Reader) Room(of *Reading) []string {
	if len(of.Errors) > 0 {
		if !slices.ContainsFunc(of.Errors, func(err *field.Error) bool { return err.Type == field.ErrorTypeNotSupported }) {
			return nil
		}
		rooms, looked := r.fleet.RoomOfClasses(r.rules.Classes)
		if !looked {
			return []string{fleet.NotLooked}
		}
		var warnings []string
		for _, room := range rooms {
			warnings = append(warnings, room.String())
		}
		return warnings
	}
	demand, err := placement.DemandOf(&of.Request, r.rules.Classes)
	if err != nil || len(of.Shares) == 0 {
		return nil
	}
	room, looked := r.fleet.RoomFor(demand)
	if !looked {
		return []string{fleet.NotLooked}
	}
	return []string{room.String()}
}

// Admitted is the pod as admission leaves it; raw is the JSON that was read.
func (r Reading) Admitted(raw []byte) (*corev1.Pod, error) {
	text, err := json.Marshal(r.Patch)
	if err != nil {
		return nil, err
	}
	patch, err := apply.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	admitted, err := patch.Apply(raw)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	return pod, json.Unmarshal(admitted, pod)
}

// Admit returns a function that is the pod as admission by the rules leaves it, and nil for one that it
// leaves as it is. The error says why it is refused. Classes are looked up in the known ones.
func Admit(rules Rules, known *classes.Set) func(namespace string, raw []byte) (*corev1.Pod, error) {
	rules.Classes = known
	reader := New(&fleet.Fleet{}, rules)
	return func(namespace string, raw []byte) (*corev1.Pod, error) {
		reading, err := reader.Read(namespace, raw)
		switch {
		case err != nil:
			return nil, err
		case len(reading.Errors) > 0:
			return nil, reading.Errors.ToAggregate()
		}
		if len(reading.Patch) == 0 {
			return nil, nil
		}
		return reading.Admitted(raw)
	}
}

// Workload says for what pods of a workload's template would be refused and warned, by the
// template's fields. It names the annotations of ours on the workload itself. The workload
// is a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or CronJob, given as JSON. A
// LimitRange or another webhook may still change its pods.
func (r *Reader) Workload(namespace string, raw []byte) ([]string, error) {
	if !r.concerns(raw) && !containsAny(raw, r.schedulers) {
		return nil, nil
	}
	workload, err := slim.DecodeWorkload(raw)
	if err != nil {
		return nil, err
	}
	template, path := workload.Spec.Template, field.NewPath("spec", "template")
	job := field.NewPath("spec", "jobTemplate")
	if template == nil {
		template, path = workload.Spec.JobTemplate.Spec.Template, job.Child("spec", "template")
	}
	if template == nil {
		return nil, nil
	}
	if template.Metadata == nil {
		template.Metadata = &slim.Metadata{}
	}
	read := r.read(namespace, template)
	var warnings []string
	for _, err := range read.Errors {
		warnings = append(warnings, fmt.Sprintf("%s.%s: pods are refused: %s", path, err.Field, err.ErrorBody()))
	}
	of := path.Child("metadata", "annotations")
	warnings = append(warnings, podrequest.Misplaced(workload.Metadata.Annotations, annotationsPath, of)...)
	warnings = append(warnings, podrequest.Misplaced(workload.Spec.JobTemplate.Metadata.Annotations, job.Child("metadata", "annotations"), of)...)
	if len(read.Shares) == 0 && read.Dialect == "" {
		read.Warnings = append(read.Warnings, r.rules.Dialects.Kept(template)...)
	}
	for _, text := range read.Warnings {
		warnings = append(warnings, path.String()+"."+text)
	}
	return warnings, nil
}
