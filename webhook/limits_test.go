// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// A pod with an idle slice goes through the webhook and the policies.
func testIdleSlice(t *testing.T, c client.Client) {
	idle := func(mib string) *corev1.Pod {
		pod := asking(enabled)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "u", Controller: ptr.To(true)}}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{api.ResourceIdleCore: resource.MustParse("30"), api.ResourceIdleMemMiB: resource.MustParse(mib)}}
		return pod
	}
	pod := idle("4096")
	must.Do(t, c.Create(t.Context(), pod, client.DryRunAll))
	const want = `{"version":"v1alpha1","containers":{"train":{"gpus":1,"memMiB":4096,"idle":30}}}`
	if got := pod.Annotations[api.AnnotationShares]; got != want {
		t.Errorf("shares %s, want %s", got, want)
	}
}

// What a LimitRange adds to a pod or has against it counts as if its owner had written it: the
// shares say what the containers ask for in the end. A quota that is used up refuses the pod
// by the resource's name, before it is there.
func testLimits(t *testing.T, c client.Client) {
	const limited = "limited"
	create := func(o client.Object) {
		t.Helper()
		must.Do(t, c.Create(t.Context(), o))
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: limited, Labels: map[string]string{api.LabelInject: api.LabelInjectEnabled}}})
	amounts := func(core, cpu string) corev1.ResourceList {
		return corev1.ResourceList{api.ResourceCore: resource.MustParse(core), corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	create(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: limited, Name: "defaults"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Default: amounts("20", "2"), DefaultRequest: amounts("20", "1"), Max: amounts("40", "4")}}}})
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: limited, Name: "quota"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.vernier.dev/gpu-core": resource.MustParse("100")}}}
	create(quota)
	// No controller works out what is used.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{"requests.vernier.dev/gpu-core": resource.MustParse("30")}}
	must.Do(t, c.Status().Update(t.Context(), quota))

	two := asking(limited)
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "beside", Image: "none"})
	await(t, "the LimitRange is in force", func() bool {
		pod := two.DeepCopy()
		return c.Create(t.Context(), pod, client.DryRunAll) == nil && len(pod.Spec.Containers[1].Resources.Limits) > 0
	})
	// The API server may know the quota and not yet its status, and then it counts nothing.
	await(t, "the quota to count the pod", func() bool {
		pod := two.DeepCopy()
		create(pod)
		must.Do(t, c.Get(t.Context(), client.ObjectKeyFromObject(quota), quota))
		switch used := quota.Status.Used.Name("requests.vernier.dev/gpu-core", resource.DecimalSI).Value(); used {
		case 80:
			two = pod
			return true
		case 30:
			expect(t, c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)), "")
		default:
			t.Fatalf("%d are used", used)
		}
		return false
	})
	const want = `{"version":"v1alpha1","containers":{"beside":{"gpus":1,"core":20,"memPercent":20},"train":{"gpus":1,"core":30,"memPercent":30}}}`
	if got := two.Annotations[api.AnnotationShares]; got != want {
		t.Errorf("shares %s, want %s", got, want)
	}
	if r := two.Spec.Containers[0].Resources.Requests; r.Cpu().String() != "1" {
		t.Errorf("requests %v", r)
	}
	large := asking(limited)
	large.Spec.Containers[0].Resources.Limits[api.ResourceCore] = resource.MustParse("41")
	expect(t, c.Create(t.Context(), large), "maximum vernier.dev/gpu-core usage per Container is 40, but limit is 41")
	expect(t, c.Create(t.Context(), asking(limited)),
		"exceeded quota: quota, requested: requests.vernier.dev/gpu-core=30, used: requests.vernier.dev/gpu-core=80, limited: requests.vernier.dev/gpu-core=100")

	// Whatever they ask for, shares are counted: the webhook has written down how many GPUs
	// each is spread over.
	slots := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: limited, Name: "slots"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.vernier.dev/gpu": resource.MustParse("2")}}}
	create(slots)
	slots.Status = corev1.ResourceQuotaStatus{Hard: slots.Spec.Hard, Used: corev1.ResourceList{"requests.vernier.dev/gpu": resource.MustParse("2")}}
	must.Do(t, c.Status().Update(t.Context(), slots))
	small := plain(limited)
	small.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ResourceMemMiB: resource.MustParse("1"), api.ResourceCore: resource.MustParse("1")}
	await(t, "a quota counts slices", func() bool {
		err := c.Create(t.Context(), small.DeepCopy(), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(),
			"exceeded quota: slots, requested: requests.vernier.dev/gpu=1, used: requests.vernier.dev/gpu=2, limited: requests.vernier.dev/gpu=2")
	})
}

// A max of a LimitRange is the default of each container, which a warning names; with the
// LimitRange of docs/operations.md only what asks for a GPU has one, and no more than the max.
func testLimitRanges(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	const limited = "capped"
	must.Do(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: limited, Labels: map[string]string{api.LabelInject: api.LabelInjectEnabled}}}))
	page := must.Get(os.ReadFile("../docs/operations.md"))(t)
	block := regexp.MustCompile("(?s)```yaml\n(apiVersion: v1\nkind: LimitRange\n.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/operations.md has no LimitRange")
	}
	works := &corev1.LimitRange{}
	must.Do(t, yaml.UnmarshalStrict(block[1], works))
	works.Namespace = limited
	naive := works.DeepCopy()
	naive.Spec.Limits[0].Default = nil
	delete(naive.Spec.Limits[0].Max, api.ResourceMemPercent)
	must.Do(t, c.Create(t.Context(), naive))
	two := func(core string) *corev1.Pod {
		pod := asking(limited)
		pod.Spec.Containers[0].Resources.Limits[api.ResourceCore] = resource.MustParse(core)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "beside", Image: "none"})
		return pod
	}
	pod := two("20")
	await(t, "the LimitRange is in force", func() bool {
		heard.texts, pod = nil, two("20")
		expect(t, c.Create(t.Context(), pod, client.DryRunAll), "")
		return len(pod.Spec.Containers[1].Resources.Limits) > 0
	})
	const set = "LimitRanger plugin set: vernier.dev/gpu-mem-mib request for container train; vernier.dev/gpu-mem-mib limit for container train; " +
		"vernier.dev/gpu-core, vernier.dev/gpu-mem-mib request for container beside; vernier.dev/gpu-core, vernier.dev/gpu-mem-mib limit for container beside"
	if got := pod.Annotations["kubernetes.io/limit-ranger"]; got != set {
		t.Errorf("LimitRanger writes %q, want %q", got, set)
	}
	said := strings.Join(heard.texts, "\n")
	for _, want := range []string{
		"containers[0].resources.limits[vernier.dev/gpu-mem-mib]: a LimitRange gives container train 20480, which the pod does not ask for",
		"containers[1].resources.limits[vernier.dev/gpu-core]: a LimitRange gives container beside 50, which",
		"containers[1].resources.limits[vernier.dev/gpu-mem-mib]: a LimitRange gives container beside 20480, which"} {
		if len(heard.texts) != 3 || !strings.Contains(said, want) {
			t.Errorf("warnings %q, want %q", heard.texts, want)
		}
	}

	must.Do(t, c.Delete(t.Context(), naive))
	must.Do(t, c.Create(t.Context(), works))
	await(t, "the LimitRange of the page is in force", func() bool {
		heard.texts, pod = nil, two("20")
		expect(t, c.Create(t.Context(), pod, client.DryRunAll), "")
		_, there := pod.Spec.Containers[1].Resources.Limits[api.ResourceMemPercent]
		return there
	})
	if want := `{"version":"v1alpha1","containers":{"train":{"gpus":1,"core":20,"memPercent":20}}}`; pod.Annotations[api.AnnotationShares] != want || len(heard.texts) > 0 {
		t.Errorf("shares %s, warnings %q", pod.Annotations[api.AnnotationShares], heard.texts)
	}
	expect(t, c.Create(t.Context(), two("51")), "maximum vernier.dev/gpu-core usage per Container is 50, but limit is 51")
	none := plain(limited)
	expect(t, c.Create(t.Context(), none), "")
	if core, there := none.Spec.Containers[0].Resources.Limits[api.ResourceCore]; !there || !core.IsZero() || len(none.Spec.SchedulingGates) > 0 || none.Annotations[api.AnnotationShares] != "" {
		t.Errorf("a pod that asks for nothing: %v, %v, %v", none.Spec.Containers[0].Resources, none.Spec.SchedulingGates, none.Annotations)
	}

	// What the page says of the other type.
	ofPods := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "of-pods"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypePod, Max: corev1.ResourceList{api.ResourceCore: resource.MustParse("50")}}}}}
	must.Do(t, c.Create(t.Context(), ofPods))
	await(t, "the LimitRange of pods is in force", func() bool {
		err := c.Create(t.Context(), plain(other), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "maximum vernier.dev/gpu-core usage per Pod is 50.  No limit is specified")
	})
	expect(t, c.Delete(t.Context(), ofPods), "")
}
