// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"maps"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Trim drops from an object, before it is cached, what is large and what neither
// the scheduler's filters nor we read. Every pod of the cluster is cached, since
// every pod takes room on its node. The tenants' texts are cut to some hundred bytes, or
// bounded. Nothing of the cache is ever written back.
func Trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		TrimPod(o)
	case *corev1.Node:
		o.Status.Images = nil
	case *corev1.Namespace:
		labels := o.Labels
		o.ObjectMeta = trimMeta(&o.ObjectMeta, v1alpha1.AnnotationAdvice)
		o.Labels = labels
	case *policyv1.PodDisruptionBudget:
		o.ObjectMeta = trimMeta(&o.ObjectMeta)
		o.Spec.Selector = trimSelector(o.Spec.Selector)
		o.Status.Conditions = nil
	case *corev1.PersistentVolumeClaim:
		trimVolumeClaim(o)
	case *resourcev1.ResourceClaim:
		trimResourceClaim(o)
	}
	return obj, nil
}

// trimMeta leaves who an object is, which version of it this is and who controls it, and the
// annotations.
func trimMeta(m *metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	kept := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
	if c := metav1.GetControllerOf(m); c != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*c}
	}
	for _, key := range annotations {
		if value, has := m.Annotations[key]; has {
			metav1.SetMetaDataAnnotation(&kept, key, value)
		}
	}
	return kept
}

// MaxSelectorTerms is how many terms are kept of a selector. Where there are more none is, and
// SelectorTerms is one more than this.
const MaxSelectorTerms = 64

// SelectorTerms is how many labels, requirements and values a selector has.
func SelectorTerms(s *metav1.LabelSelector) int {
	if s == nil {
		return 0
	}
	n := len(s.MatchLabels)
	for i := range s.MatchExpressions {
		if s.MatchExpressions[i].Key == AnnotationTrimmed {
			return MaxSelectorTerms + 1
		}
		n += 1 + len(s.MatchExpressions[i].Values)
	}
	return n
}

// trimSelector is the selector, or one that selects nothing and stands for one of too many terms.
func trimSelector(s *metav1.LabelSelector) *metav1.LabelSelector {
	if SelectorTerms(s) <= MaxSelectorTerms {
		return s
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: AnnotationTrimmed, Operator: metav1.LabelSelectorOpExists}}}
}

// trimVolumeClaim leaves what finds a volume for a claim.
func trimVolumeClaim(c *corev1.PersistentVolumeClaim) {
	c.ObjectMeta = trimMeta(&c.ObjectMeta, storagehelpers.AnnBindCompleted, storagehelpers.AnnSelectedNode, corev1.BetaStorageClassAnnotation)
	modes := slices.Clone(c.Spec.AccessModes)
	slices.Sort(modes)
	requests := corev1.ResourceList{}
	if size, asks := c.Spec.Resources.Requests[corev1.ResourceStorage]; asks {
		requests[corev1.ResourceStorage] = size
	}
	c.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes: slices.Clone(slices.Compact(modes)), Selector: trimSelector(c.Spec.Selector), Resources: corev1.VolumeResourceRequirements{Requests: requests},
		VolumeName: c.Spec.VolumeName, StorageClassName: c.Spec.StorageClassName, VolumeMode: c.Spec.VolumeMode, VolumeAttributesClassName: c.Spec.VolumeAttributesClassName,
	}
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: c.Status.Phase}
}

// MaxClaimBytes is the size of what a resource claim asks for, as Kubernetes stores it. One of more
// asks for what there is not: the pods that name it wait.
const MaxClaimBytes = 32 << 10

// trimResourceClaim leaves what is asked for and what was allocated, without what drivers read alone.
func trimResourceClaim(c *resourcev1.ResourceClaim) {
	c.ObjectMeta = trimMeta(&c.ObjectMeta, resourcev1.ExtendedResourceClaimAnnotation)
	c.Spec.Devices.Config = nil
	if c.Status.Allocation != nil {
		c.Status.Allocation.Devices.Config = nil
	}
	if c.Spec.Size() > MaxClaimBytes {
		c.Spec.Devices = resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "of more than 32 KiB, which is not read"}}}
	}
}

// TrimPod leaves all that places a pod. Of its status that is what a container that
// was resized in place was allotted, and the claims that were made for it.
func TrimPod(p *corev1.Pod) {
	maps.DeleteFunc(p.Annotations, func(key, value string) bool {
		return !strings.HasPrefix(key, v1alpha1.Prefix) && !podrequest.OfGroup(key, value)
	})
	p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Controller == nil || !*r.Controller })
	trimTerms(p)
	p.Spec.EphemeralContainers, p.Status.EphemeralContainerStatuses = nil, nil
	p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil || v.ConfigMap != nil || v.Secret != nil || v.EmptyDir != nil || v.HostPath != nil || v.DownwardAPI != nil
	})
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].Ephemeral; e != nil {
			e.VolumeClaimTemplate = nil // the claim that is made of it is read
		}
	}
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
// the like are beyond the bounds. They are not kept. In a selector it is the only key of one that
// is not kept.
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
