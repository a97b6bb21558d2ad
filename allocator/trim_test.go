// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
)

// The cache loses what is large and nobody reads; what decides stays.
func TestTrim(t *testing.T) {
	long := strings.Repeat("x", 1000)
	large := metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}}}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{long}}}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	room := corev1.NodeStatus{Allocatable: testNode("n").Status.Allocatable}
	full := room
	full.Images = []corev1.ContainerImage{{Names: []string{long}}}
	// What comes out of a broken watch passes unharmed.
	missed := cache.DeletedFinalStateUnknown{Key: "k", Obj: smallPod()}
	for name, tt := range map[string]struct{ in, want any }{
		"pod":  {largePod(long), smallPod()},
		"node": {&corev1.Node{ObjectMeta: large, Status: full}, &corev1.Node{Status: room}},
		"replica set": {&appsv1.ReplicaSet{ObjectMeta: large, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
			&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector}}},
		"replication controller": {&corev1.ReplicationController{ObjectMeta: large, Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels, Template: &template}},
			&corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels}}},
		"stateful set": {&appsv1.StatefulSet{ObjectMeta: large, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template, VolumeClaimTemplates: make([]corev1.PersistentVolumeClaim, 1)}},
			&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: selector}}},
		"missed": {missed, missed},
	} {
		got, err := trim(tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// smallPod has what the filters and the allocator read.
func smallPod() *corev1.Pod {
	p := testPod("p", map[string]v1alpha1.Share{"a": share(10, 100), "b": share(20, 200)})
	delete(p.Annotations, v1alpha1.AnnotationRequiredPlugins)
	p.Annotations[v1alpha1.AnnotationPolicy] = "spread"
	p.OwnerReferences = []metav1.OwnerReference{{Name: "r", Controller: ptr.To(true)}}
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:1], p.Spec.Containers[1:]
	p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, NominatedNodeName: "n",
		Conditions:            []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "b", ContainerID: "x", Resources: ptr.To(p.Spec.Containers[0].Resources),
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}}},
	}
	return p
}

// largePod is smallPod with all that comes along.
func largePod(long string) *corev1.Pod {
	p := smallPod()
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: long}}
	p.Annotations["example.com/large"] = long
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}})
	p.Spec.EphemeralContainers, p.Status.EphemeralContainerStatuses = make([]corev1.EphemeralContainer, 1), make([]corev1.ContainerStatus, 1)
	for _, c := range []*corev1.Container{&p.Spec.InitContainers[0], &p.Spec.Containers[0]} {
		c.Command, c.Args, c.Env = []string{long}, []string{long}, []corev1.EnvVar{{Name: "E", Value: long}}
		c.EnvFrom, c.VolumeMounts = []corev1.EnvFromSource{{Prefix: long}}, []corev1.VolumeMount{{Name: "v", MountPath: long}}
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = &corev1.Probe{}, &corev1.Probe{}, &corev1.Probe{}, &corev1.Lifecycle{}
	}
	for _, s := range []*corev1.ContainerStatus{&p.Status.InitContainerStatuses[0], &p.Status.ContainerStatuses[0]} {
		s.Image, s.ImageID, s.VolumeMounts = long, long, make([]corev1.VolumeMountStatus, 1)
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Message: long}
	}
	p.Status.InitContainerStatuses[0].State.Terminated.Message = long
	return p
}
