// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/podrequest"
)

func claimOf(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:   corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
}

// What an unbound claim waits for is named, and a claim that only waits for its pod is not.
func TestHints_NameTheUnboundClaim(t *testing.T) {
	later, immediate := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
		return &storagev1.StorageClass{Provisioner: provisioner, VolumeBindingMode: &mode}
	}
	const is = "PersistentVolumeClaim data is not bound: "
	for _, tt := range []struct {
		name   string
		claim  Claim
		edit   func(*corev1.PersistentVolumeClaim)
		events []corev1.Event
		// refused: the scheduler has refused the pod.
		refused bool
		want    string
	}{
		{name: "no claim", edit: nil, want: "PersistentVolumeClaim data does not exist: create it"},
		{name: "bound", edit: func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }},
		{name: "lost", edit: func(c *corev1.PersistentVolumeClaim) { c.Status.Phase, c.Spec.VolumeName = corev1.ClaimLost, "pv-1" },
			want: "PersistentVolumeClaim data has lost its PersistentVolume pv-1: create both again"},
		{name: "missing volume", claim: Claim{NoVolume: true}, edit: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv-1" },
			want: "PersistentVolumeClaim data waits for PersistentVolume pv-1, which does not exist: create it"},
		{name: "volume that may not be read", edit: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv-1" },
			want: "PersistentVolumeClaim data waits for PersistentVolume pv-1 to be bound to it"},
		{name: "no class named", edit: func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil },
			want: is + "it names no storage class, and no PersistentVolume is free for it"},
		{name: "class that does not exist", claim: Claim{NoClass: true}, edit: func(*corev1.PersistentVolumeClaim) {}, want: is + "its storage class fast does not exist"},
		{name: "provisioner away", claim: Claim{Class: class("x.example.com", immediate)}, edit: func(*corev1.PersistentVolumeClaim) {},
			events: []corev1.Event{said("data", "ProvisioningFailed", 1, 3, "quota"), said("data", "ExternalProvisioning", 2, 40, "Waiting for a volume")},
			want:   is + "provisioner x.example.com of its storage class fast has made no PersistentVolume; its last event: ProvisioningFailed (3 times): quota"},
		{name: "provisioner that only the claim says", edit: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": "x.example.com"}
		}, want: is + "provisioner x.example.com of its storage class fast has made no PersistentVolume"},
		{name: "class that may not be read", edit: func(*corev1.PersistentVolumeClaim) {}, want: is + "its storage class fast has made no PersistentVolume"},
		{name: "waits for the pod", claim: Claim{Class: class("x.example.com", later)}, edit: func(*corev1.PersistentVolumeClaim) {}},
		{name: "waits for the pod, as its event says", edit: func(*corev1.PersistentVolumeClaim) {}, events: []corev1.Event{said("data", "WaitForFirstConsumer", 1, 2, "waits")}},
		{name: "no longer", claim: Claim{Class: class("x.example.com", later)}, edit: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "gpu-1"}
		}, want: is + "provisioner x.example.com of its storage class fast has made no PersistentVolume"},
		{name: "no provisioner", claim: Claim{Class: class("kubernetes.io/no-provisioner", later)}, edit: func(*corev1.PersistentVolumeClaim) {}, refused: true,
			want: is + "its storage class fast has no provisioner, and no PersistentVolume of that class is free for it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := placedPod("p", "")
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
			if tt.refused {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			}
			if tt.edit != nil {
				tt.claim.Object = claimOf("data", "fast")
				tt.edit(tt.claim.Object)
			}
			expectHint(t, pod, Evidence{Claiming: tt.events, Around: Around{Claims: map[string]Claim{"data": tt.claim}}}, tt.want)
			pod.Spec.NodeName = "gpu-1"
			expectHint(t, pod, Evidence{Around: Around{Claims: map[string]Claim{"data": {}}}}, "")
		})
	}
}

// expectHint wants exactly one hint on the pod, or none where it is empty.
func expectHint(t *testing.T, pod corev1.Pod, from Evidence, want string) {
	t.Helper()
	if got := Why([]corev1.Pod{pod}, from)[0].Hints; strings.Join(got, "\n") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A pod that its StatefulSet does not make from the present template says so.
func TestHints_NameTheOldRevisionThatStays(t *testing.T) {
	const old = "it has an earlier template of StatefulSet/db (db-1, now db-2), which "
	for _, tt := range []struct {
		name string
		edit func(*appsv1.StatefulSet, *corev1.Pod)
		want string
	}{
		{"template mended while it is gated", func(*appsv1.StatefulSet, *corev1.Pod) {}, old + "replaces no pod before all are ready: delete the pod, and it is created from the present one"},
		{"OnDelete", func(s *appsv1.StatefulSet, _ *corev1.Pod) {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		}, old + "replaces no pod itself (updateStrategy OnDelete): delete the pod, and it is created from the present one"},
		{"Parallel", func(s *appsv1.StatefulSet, _ *corev1.Pod) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }, ""},
		{"below the partition", func(s *appsv1.StatefulSet, _ *corev1.Pod) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](1)}
		}, ""},
		{"present one", func(_ *appsv1.StatefulSet, p *corev1.Pod) { p.Labels[appsv1.ControllerRevisionHashLabelKey] = "db-2" }, ""},
		{"runs", func(_ *appsv1.StatefulSet, p *corev1.Pod) {
			p.Status.Phase, p.Spec.SchedulingGates = corev1.PodRunning, nil
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set, pod := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}}, gatedPod("db-0")
			set.Status.UpdateRevision = "db-2"
			pod.Labels = map[string]string{appsv1.ControllerRevisionHashLabelKey: "db-1", appsv1.PodIndexLabel: "0"}
			controlledBy(&pod, "set")
			tt.edit(set, &pod)
			expectHint(t, pod, Evidence{Around: Around{Controllers: map[types.UID]client.Object{"set": set}}}, tt.want)
		})
	}
}

func controlledBy(pod *corev1.Pod, uid types.UID) {
	pod.OwnerReferences = []metav1.OwnerReference{{UID: uid, Controller: ptr.To(true)}}
}

// A rollout that waits for the room of its own old pods says so, with the setting that helps.
func TestHints_NameTheRolloutThatWaitsForItsOldPods(t *testing.T) {
	stuck := func(pods string, most, set string) string {
		return pods + " of an earlier template of Deployment/server have slices until a new one is ready, as its maxUnavailable amounts to " + most +
			". `kubectl -n ns patch deployment server -p '{\"spec\":{\"strategy\":{\"rollingUpdate\":{\"maxUnavailable\":" + set + "}}}}'` ends one of them first"
	}
	for _, tt := range []struct {
		name string
		edit func(d *appsv1.Deployment, old, other *corev1.Pod)
		want string
	}{
		{"one replica", func(*appsv1.Deployment, *corev1.Pod, *corev1.Pod) {}, stuck("1 pod", "0", "1")},
		{"eight", func(d *appsv1.Deployment, _, _ *corev1.Pod) {
			d.Spec.Replicas, d.Status.AvailableReplicas = ptr.To[int32](8), 6
		}, stuck("1 pod", "2", "3")},
		{"of which one can be ended", func(d *appsv1.Deployment, _, _ *corev1.Pod) {
			d.Spec.Replicas, d.Status.AvailableReplicas = ptr.To[int32](8), 7
		}, ""},
		{"maxSurge and maxUnavailable of none are one", func(d *appsv1.Deployment, _, _ *corev1.Pod) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromString("0%"))}
		}, ""},
		{"Recreate", func(d *appsv1.Deployment, _, _ *corev1.Pod) {
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}, ""},
		{"old pod without a slice", func(_ *appsv1.Deployment, old, _ *corev1.Pod) { old.Annotations = nil }, ""},
		{"old pod that has ended", func(_ *appsv1.Deployment, old, _ *corev1.Pod) { old.Status.Phase = corev1.PodSucceeded }, ""},
		{"pod of another workload", func(_ *appsv1.Deployment, old, _ *corev1.Pod) { old.Labels = nil }, ""},
		{"two of them", func(_ *appsv1.Deployment, _, other *corev1.Pod) { controlledBy(other, "set-0") }, stuck("2 pods", "0", "1")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			app := map[string]string{"app": "server"}
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "server"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1),
				Selector: &metav1.LabelSelector{MatchLabels: app}}, Status: appsv1.DeploymentStatus{AvailableReplicas: 1}}
			pod, old, other := gatedPod("new"), placedPod("old", "gpu-1"), placedPod("other", "gpu-1")
			pod.Labels, old.Labels, other.Labels = app, app, app
			controlledBy(&pod, "set-2")
			controlledBy(&old, "set-1")
			controlledBy(&other, "set-2")
			tt.edit(d, &old, &other)
			expectHint(t, pod, Evidence{Around: Around{Controllers: map[types.UID]client.Object{"set-2": d}, Pods: []corev1.Pod{pod, old, other}}}, tt.want)
		})
	}
}

// A gang that has started and lost members says so, on the pods that are left as well.
func TestHints_NameTheGangBelowItsMinimum(t *testing.T) {
	const fallen = "PodGroup ns/train has fallen below its minimum: 2 of the 3 pods that start together (spec.minMember) are left"
	for _, tt := range []struct {
		name  string
		third func(*corev1.Pod)
		least int
		want  string
	}{
		{"gone", nil, 3, fallen + "; create 1 more"},
		{"failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, 3, fallen + "; create 1 more"},
		{"made again", func(p *corev1.Pod) { *p = gatedPod("train-2") }, 3, fallen + ", 1 wait"},
		{"whole", func(*corev1.Pod) {}, 3, ""},
		{"enough", nil, 2, ""},
		{"not known", nil, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pods := []corev1.Pod{placedPod("train-0", "gpu-1"), placedPod("train-1", "gpu-1"), placedPod("train-2", "gpu-1")}
			for i := range pods {
				pods[i].Status.Phase = corev1.PodRunning
			}
			if tt.third == nil {
				pods = pods[:2]
			} else {
				tt.third(&pods[2])
			}
			for i := range pods {
				pods[i].Labels = map[string]string{podrequest.LabelCoscheduling: "train"}
			}
			from := Evidence{Around: Around{Pods: pods, Least: map[podrequest.Group]int{{API: podrequest.Coscheduling, Namespace: "ns", Name: "train"}: tt.least}}}
			expectHint(t, pods[0], from, tt.want)
			// Pods that run are left out where there is nothing to say about them.
			if shown := slices.ContainsFunc(Group(Why(pods[:1], from)), func(a Alike) bool { return a.Pod == "train-0" }); shown != (tt.want != "") {
				t.Errorf("the pod that runs is shown: %v", shown)
			}
		})
	}
}
