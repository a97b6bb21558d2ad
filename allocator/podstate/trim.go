// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"maps"
	"slices"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/api/v1alpha1"
)

// Trim drops from an object, before it is cached, what is large and what neither
// the scheduler's filters nor we read. Every pod of the cluster is cached, since
// every pod takes room on its node, and with every ReplicaSet there comes a whole
// pod template. Nothing of the cache is ever written back.
func Trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		TrimPod(o)
	case *corev1.Node:
		o.Status.Images = nil
	case *corev1.Service:
		o.Annotations = nil
	case *corev1.PersistentVolumeClaim:
		maps.DeleteFunc(o.Annotations, func(key, _ string) bool { return !strings.Contains(key, "kubernetes.io/") })
	case *corev1.ReplicationController:
		o.Annotations, o.Spec.Template = nil, nil
	case *appsv1.ReplicaSet:
		o.Annotations, o.Spec.Template = nil, corev1.PodTemplateSpec{}
	case *appsv1.StatefulSet:
		o.Annotations, o.Spec.Template, o.Spec.VolumeClaimTemplates = nil, corev1.PodTemplateSpec{}, nil
	}
	return obj, nil
}

// TrimPod leaves all that places a pod. Of its status that is what a container that
// was resized in place was allotted, and the claims that were made for it.
func TrimPod(p *corev1.Pod) {
	maps.DeleteFunc(p.Annotations, func(key, _ string) bool {
		return !strings.HasPrefix(key, v1alpha1.Prefix) && key != group.AnnotationKueueTotal && key != group.AnnotationKueueFast
	})
	p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Controller == nil || !*r.Controller })
	trimTerms(p)
	p.Spec.EphemeralContainers, p.Status.EphemeralContainerStatuses = nil, nil
	p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil || v.ConfigMap != nil || v.Secret != nil || v.EmptyDir != nil || v.HostPath != nil || v.DownwardAPI != nil
	})
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			c.Command, c.Args, c.Env, c.EnvFrom, c.VolumeMounts = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			s.Image, s.ImageID, s.VolumeMounts = "", "", nil
			s.LastTerminationState = corev1.ContainerState{}
			if s.State.Terminated != nil {
				s.State.Terminated.Message = ""
			}
		}
	}
}

// AnnotationTrimmed is, in the cache alone, why a gated pod is not placed whose affinity and
// the like are beyond the bounds: they are not kept.
const AnnotationTrimmed = v1alpha1.Prefix + "trimmed"

// trimTerms leaves of a pod that is to be placed what the filters read of such a pod, if it is
// within the bounds, and of any other what they read of a pod that is on a node: whom it keeps
// away from itself. Nodes are not scored here, so what is only preferred is never read.
func trimTerms(p *corev1.Pod) {
	delete(p.Annotations, AnnotationTrimmed)
	placed := !Ours(p) || p.Spec.NodeName != ""
	if !placed {
		if err := v1alpha1.CheckSchedulingTerms(&p.Spec); err != nil {
			placed = true
			if Gated(p) {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationTrimmed, err.Error())
			}
		}
	}
	if placed {
		p.Spec.NodeSelector, p.Spec.Tolerations, p.Spec.TopologySpreadConstraints = nil, nil, nil
	}
	a, kept := p.Spec.Affinity, corev1.Affinity{}
	if a == nil {
		return
	}
	if a.NodeAffinity != nil && !placed && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		kept.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution}
	}
	if a.PodAffinity != nil && !placed && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		kept.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution}
	}
	if a.PodAntiAffinity != nil {
		if terms := firstTerms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution); len(terms) > 0 {
			kept.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		}
	}
	if p.Spec.Affinity = &kept; kept == (corev1.Affinity{}) {
		p.Spec.Affinity = nil
	}
}

// firstTerms are as many of the terms as a pod with a share may have. Others have no bound of
// ours on what they say, and there may be a MiB of it in each. Where the scheduler refuses a
// node for a term that is left out, the pod is given up like any other that is refused.
func firstTerms(terms []corev1.PodAffinityTerm) []corev1.PodAffinityTerm {
	n := sort.Search(len(terms), func(i int) bool {
		return v1alpha1.CheckSchedulingTerms(&corev1.PodSpec{Affinity: &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms[:i+1]}}}) != nil
	})
	if n < len(terms) {
		return slices.Clone(terms[:n]) // the others would stay in memory with them
	}
	return terms
}
