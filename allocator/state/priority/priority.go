// SPDX-License-Identifier: Apache-2.0

// Package priority owns which PriorityClasses count against pods of other namespaces. The
// operator allows some to all namespaces, and the labels of a namespace allow some to it.
//
// InKubernetes a user who may create a pod may name any class. In its own namespace the
// priority of a pod counts as it is. Against pods of other namespaces a class that is not
// allowed counts as 0 at most, which is what a pod without a class has. So a pod with one
// takes nothing from others, and a pod with one below 0 yields to them.
package priority

import (
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Any stands for all classes in what is allowed to all namespaces.
const Any = "*"

// Priority is what the priority of a pod, or of a gang, counts.
type Priority struct {
	Namespace string
	// Within counts against pods of its own namespace, Across against those of others, which is
	// never more.
	Within, Across int32
}

// Against is what counts against pods of the namespace.
func (p Priority) Against(namespace string) int32 {
	if p.Namespace == namespace {
		return p.Within
	}
	return p.Across
}

// Above reports whether p may take room from q.
func (p Priority) Above(q Priority) bool { return p.Against(q.Namespace) > q.Against(p.Namespace) }

// Limited reports whether it counts less against other namespaces.
func (p Priority) Limited() bool { return p.Across < p.Within }

// Class is what a pod's priority follows from. It never changes.
type Class struct {
	Namespace, Name string
	Value           int32
}

// Idle is the priority of pods with idle slices, below that of all others: what they have is
// promised to nobody. Their own classes count for the scheduler alone.
const Idle = math.MinInt32 + 1

// ClassOf is the pod's.
func ClassOf(pod *corev1.Pod) Class {
	if podrequest.OnIdle(pod) {
		return Class{Namespace: pod.Namespace, Value: Idle}
	}
	return Class{pod.Namespace, pod.Spec.PriorityClassName, corev1helpers.PodPriority(pod)}
}

// Classes are those that are allowed. The zero value allows none. They may be used concurrently.
type Classes struct {
	// Everywhere are allowed to all namespaces. Set it before the first use.
	Everywhere []string

	mu sync.RWMutex
	// in are those that a namespace is allowed, where it is any.
	in      map[string]map[string]bool
	version int
}

// SetNamespace takes in the labels of a namespace; none for one that is gone.
func (cs *Classes) SetNamespace(name string, labels map[string]string) {
	var allowed map[string]bool
	for key, value := range labels {
		if class, is := strings.CutPrefix(key, v1alpha1.LabelPriorityClassPrefix); is && value == v1alpha1.LabelPriorityClassEnabled {
			if allowed == nil {
				allowed = map[string]bool{}
			}
			allowed[class] = true
		}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if maps.Equal(allowed, cs.in[name]) {
		return
	}
	if cs.version++; cs.in == nil {
		cs.in = map[string]map[string]bool{}
	}
	if cs.in[name] = allowed; allowed == nil {
		delete(cs.in, name)
	}
}

// Version changes with what is allowed.
func (cs *Classes) Version() int {
	cs.mu.RLock()
	defer cs.mu.RUnlock()
	return cs.version
}

// Of is the pod's priority.
func (cs *Classes) Of(pod *corev1.Pod) Priority { return cs.OfClass(ClassOf(pod)) }

// OfClass is the priority of the pods of a class.
func (cs *Classes) OfClass(c Class) Priority {
	p := Priority{c.Namespace, c.Value, c.Value}
	if c.Value > 0 && !cs.allows(c) {
		p.Across = 0
	}
	return p
}

// MayEnd returns a function that reports whether another pod may be ended for the pod.
func (cs *Classes) MayEnd(pod *corev1.Pod) func(victim *corev1.Pod) bool {
	p := cs.Of(pod)
	return func(victim *corev1.Pod) bool { return p.Above(cs.Of(victim)) }
}

func (cs *Classes) allows(c Class) bool {
	if slices.Contains(cs.Everywhere, Any) || slices.Contains(cs.Everywhere, c.Name) {
		return true
	}
	cs.mu.RLock()
	defer cs.mu.RUnlock()
	return cs.in[c.Namespace][c.Name]
}

// Least is the priority of pods of one namespace that are placed together. It
// is the lowest of theirs, so that one of a high priority lifts no others.
func (cs *Classes) Least(pods []*corev1.Pod) (least Priority) {
	for i, pod := range pods {
		p := cs.Of(pod)
		if i == 0 {
			least = p
		}
		least.Within, least.Across = min(least.Within, p.Within), min(least.Across, p.Across)
	}
	return least
}
