// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// The cache loses what is large and nobody reads; what decides stays.
func TestTrim(t *testing.T) {
	long := strings.Repeat("x", 1000)
	large := metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}}}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{long}}}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	room := corev1.NodeStatus{Allocatable: objects.Node("n").Status.Allocatable}
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
		"claim": {&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes", "example.com/large": long}}},
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}}},
		"missed": {missed, missed},
	} {
		got, err := Trim(tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// What a pod says about where it goes is kept as far as it is read: all that is required while
// it is to be placed, and afterwards, or without a share, whom it keeps away from itself.
func TestTrimKeepsTermsThatAreRead(t *testing.T) {
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}
	node := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpExists}}}
	preferred := []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}
	of := func(edits ...func(*corev1.Pod)) *corev1.Pod {
		p := objects.Pod("p", map[string]v1alpha1.Share{"c": objects.Share(10, 100)})
		p.Spec.NodeSelector = map[string]string{"k": "v"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "k"}}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "k"}}
		p.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{node}},
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: node}}},
			PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}, PreferredDuringSchedulingIgnoredDuringExecution: preferred},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}, PreferredDuringSchedulingIgnoredDuringExecution: preferred},
		}
		for _, e := range edits {
			e(p)
		}
		return p
	}
	ungated := func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }
	bound := func(p *corev1.Pod) { ungated(p); p.Spec.NodeName = "n0" }
	foreign := func(p *corev1.Pod) { ungated(p); p.Annotations = nil }
	many := func(p *corev1.Pod) { p.Spec.Tolerations = make([]corev1.Toleration, v1alpha1.MaxSchedulingTerms) }
	for name, tt := range map[string]struct {
		pod               *corev1.Pod
		required, trimmed bool
	}{
		"gated":                     {of(), true, false},
		"placed":                    {of(ungated), true, false},
		"bound":                     {of(bound), false, false},
		"without a share":           {of(foreign), false, false},
		"gated, beyond the bounds":  {of(many), false, true},
		"placed, beyond the bounds": {of(many, ungated), false, false},
	} {
		want := of().Spec
		want.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = nil
		want.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = nil
		want.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = nil
		if !tt.required {
			want.NodeSelector, want.Tolerations, want.TopologySpreadConstraints = nil, nil, nil
			want.Affinity.NodeAffinity, want.Affinity.PodAffinity = nil, nil
		}
		want.NodeName, want.SchedulingGates = tt.pod.Spec.NodeName, tt.pod.Spec.SchedulingGates
		TrimPod(tt.pod)
		if diff := cmp.Diff(want, tt.pod.Spec); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, trimmed := tt.pod.Annotations[AnnotationTrimmed]; trimmed != tt.trimmed {
			t.Errorf("%s: %v", name, tt.pod.Annotations)
		}
	}
}

// A MiB of affinity in each pod, of whatever kind, leaves some KiB of it in the caches.
func TestHostileAffinityIsTrimmed(t *testing.T) {
	var terms []corev1.PodAffinityTerm
	var weighted []corev1.WeightedPodAffinityTerm
	for i := range 10_000 {
		terms = append(terms, corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{fmt.Sprint("example.com/a-label-", i): strings.Repeat("x", 63)}}})
		weighted = append(weighted, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: terms[i]})
	}
	gate := []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}
	for name, a := range map[string]corev1.Affinity{
		"affinity":                {PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}},
		"anti-affinity":           {PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}},
		"preferred affinity":      {PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}},
		"preferred anti-affinity": {PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}},
	} {
		for kind, p := range map[string]*corev1.Pod{
			"gated":           {Spec: corev1.PodSpec{SchedulingGates: gate}},
			"bound":           {Spec: corev1.PodSpec{NodeName: "n0"}},
			"without a share": {},
		} {
			p.Spec.Affinity = a.DeepCopy()
			before := p.Size()
			TrimPod(p)
			if got := p.Size(); before < 1<<20 || got > v1alpha1.MaxSchedulingBytes {
				t.Errorf("%s, %s: %d bytes are left of %d", name, kind, got, before)
			}
			if anti := p.Spec.Affinity; name == "anti-affinity" && (anti == nil || len(anti.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != v1alpha1.MaxSchedulingTerms/2) && kind != "gated" {
				t.Errorf("%s, %s: keeps %v", name, kind, anti)
			}
		}
	}
}

// smallPod has what the filters and the allocator read.
func smallPod() *corev1.Pod {
	p := objects.Pod("p", map[string]v1alpha1.Share{"a": objects.Share(10, 100), "b": objects.Share(20, 200)})
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
	p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Name: long})
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
		corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: long}}}}})
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
