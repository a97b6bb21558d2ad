// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/hooks"
)

const (
	// reasonStatic: a static pod asks for a share, in vain.
	reasonStatic = "StaticPodWithShare"
	// annotationInVain is on our own copy of such a pod: the container that asks.
	annotationInVain = v1alpha1.Prefix + "asks-in-vain"
)

// inVain marks a static pod that asks for a share, and has nothing for others. The kubelet
// starts such a pod from a manifest on the node, without asking anybody: there is no grant,
// and its containers see no GPU. The runtime hears of no requests, so the pod that the
// kubelet shows the API server for it tells.
func inVain(pod *corev1.Pod) map[string]string {
	own, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if !static {
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if len(v1alpha1.Asked(c.Resources.Requests)) > 0 {
			return map[string]string{annotationInVain: c.Name, corev1.MirrorPodAnnotationKey: own}
		}
	}
	return nil
}

// tellStatic tells of a static pod that asks in vain. The event is of the UID that the pod has
// on its node, as the kubelet's own are: kubectl describe looks for that.
func tellStatic(object any, report hooks.Reporter) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Annotations[annotationInVain] == "" {
		return
	}
	container := pod.Annotations[annotationInVain]
	own := types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
	report.Warn(hooks.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: own, Container: container}, reasonStatic,
		"container "+container+" asks for a share, and a static pod gets none: it sees no GPU. Take the request out of the manifest on the node, or run it in a DaemonSet or a Deployment")
}
