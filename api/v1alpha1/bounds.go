// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of what a pod may carry. A tenant writes all of it, and every part reads it:
// what is beyond a bound is refused at creation, before anything else is read. The
// admission policies have the same numbers (deploy/chart/templates/_policy.tpl), which a
// test compares.
const (
	// MaxPodContainers bounds the containers of any pod, init containers among them. The
	// API server looks at each to find out whether it asks for a share.
	MaxPodContainers = 512
	// MaxSharePodContainers bounds those of a pod with a share, and twice as many with
	// ephemeral ones, which are added while it runs.
	MaxSharePodContainers = 64
	// MaxShareContainers bounds the containers of a pod that ask for a share. Each takes
	// a slot on a device, of which there are MaxSlicesPerDevice.
	MaxShareContainers = 16
	// MaxShareAnnotations bounds the annotations of a pod with a share.
	MaxShareAnnotations = 256
	// MaxShareGates bounds the scheduling gates of a pod with a share.
	MaxShareGates = 32
	// MaxShareVolumes bounds the volumes of a pod with a share, MaxShareHostPaths those of
	// type hostPath, and MaxHostPath the characters of such a path.
	MaxShareVolumes   = 512
	MaxShareHostPaths = 32
	MaxHostPath       = 256
	// MaxShareCapabilities bounds the capabilities that the containers of a pod with a
	// share add together.
	MaxShareCapabilities = 256
	// MaxPluginLists bounds the annotations of a pod with a share by which it names NRI
	// plugins besides Vernier's.
	MaxPluginLists = 16
	// MaxAnnotationBytes bounds each annotation that Vernier reads, but for the documents
	// that it writes.
	MaxAnnotationBytes = 4096
	// MaxAllowListItems bounds the items of AnnotationGPUModel and AnnotationGPUUUID:
	// every device of the cluster is compared with each.
	MaxAllowListItems = 64
)

// Bounds of what a pod with a share may say about where it goes.
const (
	// MaxSchedulingTerms is a count, see CheckSchedulingTerms. The scheduler's filters
	// compare each term of pods with every pod of the cluster, and each of nodes with every
	// node. No other pod is placed meantime. Pods have ten as a rule.
	MaxSchedulingTerms = 64
	// MaxSchedulingBytes is the size of all these fields, as Kubernetes stores them: some
	// five hundred node names. The allocator keeps them of every pod that waits.
	MaxSchedulingBytes = 16 << 10
)

// CheckSchedulingTerms reports, as an error that names fields and remedy, that a pod says more
// about its node than a pod with a share may. These count one each: nodeSelector's labels,
// tolerations, topology spread constraints, and the terms of node affinity, pod affinity and anti-affinity. So do
// the requirements in all terms and label selectors,
// required or preferred.
func CheckSchedulingTerms(pod *corev1.PodSpec) error {
	terms, size := len(pod.NodeSelector)+len(pod.Tolerations), 0
	for key, value := range pod.NodeSelector {
		size += len(key) + len(value)
	}
	for i := range pod.Tolerations {
		size += pod.Tolerations[i].Size()
	}
	for i := range pod.TopologySpreadConstraints {
		c := &pod.TopologySpreadConstraints[i]
		terms += 1 + requirements(c.LabelSelector)
		size += c.Size()
	}
	if a := pod.Affinity; a != nil {
		terms += nodeTerms(a.NodeAffinity)
		size += a.Size()
		if p := a.PodAffinity; p != nil {
			terms += podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if p := a.PodAntiAffinity; p != nil {
			terms += podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	const fields = "spec.affinity, topologySpreadConstraints, nodeSelector and tolerations"
	switch {
	case terms > MaxSchedulingTerms:
		return fmt.Errorf("%s have %d terms and requirements, a pod with a share may have %d: use fewer", fields, terms, MaxSchedulingTerms)
	case size > MaxSchedulingBytes:
		return fmt.Errorf("%s have %d bytes, those of a pod with a share may have %d: use fewer or shorter terms", fields, size, MaxSchedulingBytes)
	}
	return nil
}

func nodeTerms(a *corev1.NodeAffinity) (n int) {
	if a == nil {
		return 0
	}
	of := func(t *corev1.NodeSelectorTerm) int { return 1 + len(t.MatchExpressions) + len(t.MatchFields) }
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			n += of(&required.NodeSelectorTerms[i])
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		n += of(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
	}
	return n
}

func podTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) (n int) {
	of := func(t *corev1.PodAffinityTerm) int {
		return 1 + requirements(t.LabelSelector) + requirements(t.NamespaceSelector)
	}
	for i := range required {
		n += of(&required[i])
	}
	for i := range preferred {
		n += of(&preferred[i].PodAffinityTerm)
	}
	return n
}

func requirements(s *metav1.LabelSelector) int {
	if s == nil {
		return 0
	}
	return len(s.MatchLabels) + len(s.MatchExpressions)
}
