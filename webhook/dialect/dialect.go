// SPDX-License-Identifier: Apache-2.0

// Package dialect owns what pods written for other systems of sharing GPUs mean.
// It rewrites their resources, annotations and scheduler as ours, so
// that the rest of the webhook sees a pod like any other.
//
// It never decides whether a pod may have what it asks for, and drops nothing in
// silence. A field that cannot be kept is a warning, one that cannot be read an error.
package dialect

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// Dialect is how the pods of one system ask for GPUs.
type Dialect interface {
	// Words are what the API server and the webhook look for.
	Words() Words
	// Share is what such a container asks for on each of its GPUs. Where it says
	// why it cannot be read, the share means nothing.
	Share(r *Reading, c *Asking) api.Share
	// Pod reads what holds for all of the pod: annotations and labels.
	Pod(r *Reading)
}

// Words of a dialect. All are exact but those that are called prefixes.
type Words struct {
	// Name as the webhook's flag has it.
	Name string
	// Mark is written on the pod, for the node agent: it says in which environment
	// the containers expect to find themselves. Empty is the name.
	Mark string
	// Trace stands somewhere in every pod that asks in the dialect, so that one that
	// does not is known before it is decoded.
	Trace string
	// Resources that it reads. They are taken out of the containers that it
	// translates: no node has them once the other system is gone.
	Resources []corev1.ResourceName
	// AnnotationPrefixes begin the annotations by which a pod asks.
	AnnotationPrefixes []string
	// Schedulers of the other system. Nobody would bind their pods.
	Schedulers []string
}

// Set is the dialects that are switched on, in the order in which they are asked.
type Set []Dialect

// of is the dialect that a pod is written in; nil where it is in none. The same
// resource may mean one thing to one system and another to the next: whose
// scheduler the pod names decides, then the order of the set. A pod that names the
// scheduler of a system whose dialect is not switched on is left to that system.
func (s Set) of(pod *slim.Pod) Dialect {
	owned := slices.Contains(schedulers, pod.Spec.SchedulerName)
	for _, d := range s {
		if (!owned || slices.Contains(d.Words().Schedulers, pod.Spec.SchedulerName)) && asks(d, pod) {
			return d
		}
	}
	return nil
}

// Asks reports whether the pod is written in one of the dialects.
func (s Set) Asks(pod *slim.Pod) bool { return s.of(pod) != nil }

// schedulers of all systems that there is a dialect for.
var schedulers = Settings{}.build().Schedulers()

// Schedulers are those of the dialects' systems.
func (s Set) Schedulers() (names []string) {
	for _, d := range s {
		names = append(names, d.Words().Schedulers...)
	}
	return names
}

func asks(d Dialect, pod *slim.Pod) bool {
	return pod.Any(func(c *slim.Container) bool { return asksIn(d, pod, c) })
}

// asker is a dialect in which more than the amounts of a container says whether it asks.
type asker interface {
	Asks(pod *slim.Pod, c *slim.Container) bool
}

// asksIn reports whether a container asks for something in the dialect.
func asksIn(d Dialect, pod *slim.Pod, c *slim.Container) bool {
	if own, has := d.(asker); has {
		return own.Asks(pod, c)
	}
	return asksAny(c.Resources, d.Words().Resources...)
}

// asksBy are the resources of the dialect by each of which a container of the pod would ask.
func asksBy(d Dialect, pod *slim.Pod) []corev1.ResourceName {
	return slices.DeleteFunc(slices.Clone(d.Words().Resources), func(name corev1.ResourceName) bool {
		one := corev1.ResourceList{name: *resource.NewQuantity(1, resource.DecimalSI)}
		return !asksIn(d, pod, &slim.Container{Resources: corev1.ResourceRequirements{Limits: one}})
	})
}

// Kept warns of a pod that asks for no GPU and names the scheduler of one of the dialects. It
// keeps that scheduler, which may be gone once the pods that ask for GPUs are moved.
func (s Set) Kept(pod *slim.Pod) []string {
	if !slices.Contains(s.Schedulers(), pod.Spec.SchedulerName) {
		return nil
	}
	return []string{kept(specPath.Child("schedulerName"), pod.Spec.SchedulerName, "the pod asks")}
}

func kept(at *field.Path, scheduler, who string) string {
	return fmt.Sprintf("%s: %s stays, since %s for no GPU: where that scheduler is gone it waits for ever: set %s", at, scheduler, who, corev1.DefaultSchedulerName)
}

// Asked are the resources of the dialects of which a list has more than none.
func (s Set) Asked(list corev1.ResourceList) (names []corev1.ResourceName) {
	for _, d := range s {
		for _, name := range d.Words().Resources {
			if asksAny(corev1.ResourceRequirements{Limits: list}, name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Traces are the texts of which one stands in every pod that asks in one of the
// dialects.
func (s Set) Traces() []string {
	var traces []string
	for _, d := range s {
		if trace := d.Words().Trace; !slices.Contains(traces, trace) {
			traces = append(traces, trace)
		}
	}
	return traces
}

// asksAny reports whether a container asks for more than none of any of them. The
// zeros that templates leave behind ask for nothing.
func asksAny(r corev1.ResourceRequirements, names ...corev1.ResourceName) bool {
	return slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
		q := quantity(r, name)
		return !q.IsZero()
	})
}

// HalfEnabled compares the dialects that are switched on with the match conditions by which
// the API server sends pods to the webhook. Unsent are the names of the former that do not
// stand in the latter: pods that ask by them are created as they are. Unread are the names
// of dialects that stand there and that no dialect switched on reads. Their pods stay
// as they are, and wait for the webhook for nothing.
func (s Set) HalfEnabled(conditions []string) (unsent, unread []string) {
	text := strings.Join(conditions, "\n")
	stands := func(name string) bool {
		return strings.Contains(text, "'"+name+"'") || strings.Contains(text, `"`+name+`"`)
	}
	read := s.names()
	for _, name := range read {
		// Without a condition all pods come.
		if len(conditions) > 0 && !stands(name) {
			unsent = append(unsent, name)
		}
	}
	every := Settings{NVIDIATimeSlicing: true}.build()
	unread = slices.DeleteFunc(every.names(), func(name string) bool { return !stands(name) || slices.Contains(read, name) })
	return unsent, unread
}

// names are the resources and the prefixes of annotations of all dialects, sorted.
func (s Set) names() []string {
	var names []string
	for _, d := range s {
		words := d.Words()
		for _, name := range words.Resources {
			names = append(names, string(name))
		}
		names = append(names, words.AnnotationPrefixes...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
