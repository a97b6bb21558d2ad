// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// One pod's YAML ended the webhook for everybody, and one pod's containers took every slot of
// a device: both are refused, and the webhook that refused them is the one that was there.
func TestHostilePodsAreRefused(t *testing.T) {
	before := restarts(t)
	for name, c := range map[string]struct {
		pod  *pod
		says string
	}{
		"YAML aliases": {newPod("aliases").share(10, 10).annotate(v1alpha1.AnnotationRequiredPlugins,
			"[&a "+strings.Repeat("x", 40<<10)+strings.Repeat(",*a", 15_000)+"]"), "4096 are allowed"},
		"short aliases": {newPod("aliases").share(10, 10).annotate(v1alpha1.AnnotationRequiredPlugins, "[&a x,*a]"), "without YAML anchors and aliases"},
		"allow list":    {newPod("list").share(10, 10).annotate(v1alpha1.AnnotationGPUUUID, strings.Repeat("a,", 125_000)+"a"), "4096 are allowed"},
		"annotations":   {annotated(newPod("annotations").share(10, 10), 20_000), "at most 256"},
		"slots":         {slots(newPod("slots"), 512), "at most 64"},
		"fewer slots":   {slots(newPod("slots"), 17), "at most 16 containers of a pod may ask for a share"},
		"a folder":      {mounting(newPod("folder").share(10, 10), "/etc/ssh"), "/etc/ssh holds the node's keys"},
	} {
		if text := refused(t, c.pod); !strings.Contains(text, c.says) {
			t.Errorf("%s: refused without saying %q: %.300s", name, c.says, text)
		}
	}
	create(t, newPod("honest").share(10, 10).on(small))
	if now := restarts(t); now != before {
		t.Errorf("the webhooks were %s before and are %s: a tenant ended one", before, now)
	}
}

// restarts names the processes of the webhook.
func restarts(t *testing.T) string {
	t.Helper()
	var ids []string
	for _, p := range sys.Webhooks {
		ids = append(ids, fmt.Sprint(p.ID(), p.Running()))
	}
	return strings.Join(ids, " ")
}

func annotated(p *pod, n int) *pod {
	for i := range n {
		p.annotate(fmt.Sprintf("k%d", i), "")
	}
	return p
}

func slots(p *pod, n int) *pod {
	p.Spec.Containers = nil
	for i := range n {
		c := container(fmt.Sprintf("c%d", i))
		c.Resources.Limits = corev1.ResourceList{v1alpha1.ResourceMemMiB: resource.MustParse("1")}
		p.also(c)
	}
	return p
}

func mounting(p *pod, folder string) *pod {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "folder",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}})
	return p
}

// Slices are counted by a ResourceQuota, however small they are.
func TestHostileSlots(t *testing.T) {
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: neighbours, Name: "slots"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.vernier.dev/gpu": resource.MustParse("2")}}}
	quotas := sys.Kube.CoreV1().ResourceQuotas(neighbours)
	must.Get(quotas.Create(t.Context(), quota, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { must.Report(t, quotas.Delete(context.Background(), quota.Name, metav1.DeleteOptions{})) })
	await(t, "the quota to be counted", func() (bool, string) {
		now, err := quotas.Get(t.Context(), quota.Name, metav1.GetOptions{})
		return err == nil && len(now.Status.Hard) > 0, fmt.Sprint(err)
	})
	create(t, slots(newPod("two").in(neighbours), 2))
	if text := refused(t, slots(newPod("third").in(neighbours), 1)); !strings.Contains(text, "exceeded quota: slots, requested: requests.vernier.dev/gpu=1, used: requests.vernier.dev/gpu=2") {
		t.Errorf("a third slice: %s", text)
	}
}

// A pod that nobody ever binds, with an affinity to every other, keeps no other tenant's pod
// at its gate.
func TestHostileAffinityHoldsUpNobody(t *testing.T) {
	hostile := newPod("nobodys").in(neighbours).limit(v1alpha1.ResourceMemMiB, 1).on(small)
	hostile.Spec.SchedulerName = "nobody"
	hostile.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"never": "there"}}, TopologyKey: corev1.LabelHostname}},
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}, TopologyKey: corev1.LabelTopologyZone}}},
	}, PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}, TopologyKey: corev1.LabelHostname}}}}
	// Something for its affinity to be beside.
	awaitReady(t, create(t, newPod("occupant").share(10, 10).on(small)))
	made := create(t, hostile)
	awaitPod(t, made, "its place", func(p *corev1.Pod) bool { return p.Annotations[v1alpha1.AnnotationPlacement] != "" })
	honest := awaitReady(t, create(t, newPod("honest").share(10, 10).on(small)))
	if now := get(t, made); now.Spec.NodeName != "" {
		t.Errorf("pod %s is bound, and was to be in the way of %s", now.Name, honest.Name)
	}
}
