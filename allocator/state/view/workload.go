// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkloadOf is what a pod belongs to, as kubectl names it: deployment/web. A pod without a
// controller is pod/NAME.
func WorkloadOf(p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return "pod/" + p.Name
	}
	// A Deployment's ReplicaSet has the hash of the pod template at the end of its name.
	if hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; owner.Kind == "ReplicaSet" && hash != "" {
		if name, of := strings.CutSuffix(owner.Name, "-"+hash); of {
			return "deployment/" + name
		}
	}
	return strings.ToLower(owner.Kind) + "/" + owner.Name
}
