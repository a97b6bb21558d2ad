// SPDX-License-Identifier: Apache-2.0

package podstate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// The cache loses what is large and nobody reads; what decides stays.
func TestTrim(t *testing.T) {
	long := strings.Repeat("x", 1000)
	large := metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}}}
	owner := []metav1.OwnerReference{{Name: "c", Controller: ptr.To(true)}}
	quiet := func(annotations map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "o", UID: "u", ResourceVersion: "1", Annotations: annotations, OwnerReferences: owner}
	}
	gib := resource.MustParse("1Gi")
	requests, results := []resourcev1.DeviceRequest{{Name: "r"}}, []resourcev1.DeviceRequestAllocationResult{{Device: "d"}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	room := corev1.NodeStatus{Allocatable: objects.Node("n").Status.Allocatable}
	full := room
	full.Images = []corev1.ContainerImage{{Names: []string{long}}}
	// What comes out of a broken watch passes unharmed.
	missed := cache.DeletedFinalStateUnknown{Key: "k", Obj: smallPod()}
	for name, tt := range map[string]struct{ in, want any }{
		"pod":       {largePod(long), smallPod()},
		"node":      {&corev1.Node{ObjectMeta: large, Status: full}, &corev1.Node{Status: room}},
		"namespace": {&corev1.Namespace{ObjectMeta: noisy(long, nil)}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "o", UID: "u", ResourceVersion: "1", Labels: map[string]string{"l": long}, OwnerReferences: owner}}},
		"budget": {&policyv1.PodDisruptionBudget{ObjectMeta: noisy(long, nil), Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2, Conditions: make([]metav1.Condition, 1)}},
			&policyv1.PodDisruptionBudget{ObjectMeta: quiet(nil), Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2}}},
		"claim": {&corev1.PersistentVolumeClaim{ObjectMeta: noisy(long, map[string]string{"pv.kubernetes.io/bind-completed": "yes", "large.kubernetes.io/x": long}), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{"b", "a", "b"}, Selector: selector, VolumeName: "v", DataSource: &corev1.TypedLocalObjectReference{Name: long},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": gib, "other": gib}, Limits: corev1.ResourceList{"storage": gib}}}, Status: corev1.PersistentVolumeClaimStatus{Phase: "Bound", Capacity: corev1.ResourceList{"storage": gib}}},
			&corev1.PersistentVolumeClaim{ObjectMeta: quiet(map[string]string{"pv.kubernetes.io/bind-completed": "yes"}), Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{"a", "b"}, Selector: selector, VolumeName: "v",
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": gib}}}, Status: corev1.PersistentVolumeClaimStatus{Phase: "Bound"}}},
		"resource claim": {&resourcev1.ResourceClaim{ObjectMeta: noisy(long, map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}), Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests, Config: make([]resourcev1.DeviceClaimConfiguration, 1)}},
			Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results, Config: make([]resourcev1.DeviceAllocationConfiguration, 1)}}}},
			&resourcev1.ResourceClaim{ObjectMeta: quiet(map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}), Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
				Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results}}}}},
		"missed": {missed, missed},
	} {
		got, err := podstate.Trim(tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// noisy is metadata with all that may come along.
func noisy(long string, annotations map[string]string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: "o", UID: "u", ResourceVersion: "1", Labels: map[string]string{"l": long}, Annotations: map[string]string{"example.com/large": long}, Finalizers: []string{long},
		OwnerReferences: []metav1.OwnerReference{{Name: long}, {Name: "c", Controller: ptr.To(true)}}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}}}
	maps.Copy(m.Annotations, annotations)
	return m
}

// What tenants write is kept in some KiB, whatever they write, and what they ask for that is not kept
// there is not.
func TestHostileObjectsAreTrimmed(t *testing.T) {
	values := make([]string, 240_000)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	requirement := metav1.LabelSelectorRequirement{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: values}
	many, mib := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}}, strings.Repeat("x", 1<<20)
	device := resourcev1.DeviceRequest{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: mib}}}}}
	for name, o := range map[string]interface {
		metav1.Object
		Size() int
	}{
		"budget":         &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: many.DeepCopy()}},
		"claim":          &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{Selector: many.DeepCopy(), AccessModes: slices.Repeat([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, 100_000)}},
		"resource claim": &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{device}}}},
		"pod with a claim": &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{Selector: many}}}}}}}},
	} {
		o.SetAnnotations(map[string]string{"a": mib})
		o.SetFinalizers([]string{mib})
		if _, is := o.(*corev1.Pod); is {
			o.SetFinalizers(nil)
		}
		before := o.Size()
		for range 2 {
			if _, err := podstate.Trim(o); err != nil {
				t.Fatal(err)
			}
			if got := o.Size(); before < 2<<20 || got > 1<<10 {
				t.Errorf("%s: %d bytes are left of %d", name, got, before)
			}
		}
		var selector *metav1.LabelSelector
		switch o := o.(type) {
		case *policyv1.PodDisruptionBudget:
			selector = o.Spec.Selector
		case *corev1.PersistentVolumeClaim:
			selector = o.Spec.Selector
		default:
			continue
		}
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || parsed.Matches(labels.Set{"k": "v7"}) || podstate.SelectorTerms(selector) <= podstate.MaxSelectorTerms {
			t.Errorf("%s: %v selects what it should not, or is as short as any: %v", name, parsed, err)
		}
	}
	short := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: values[:podstate.MaxSelectorTerms-2]}}}
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: short.DeepCopy()}}
	if _, err := podstate.Trim(b); err != nil || !equality.Semantic.DeepEqual(b.Spec.Selector, short) {
		t.Errorf("a selector of %d terms: %v: %v", podstate.SelectorTerms(short), b.Spec.Selector, err)
	}
}

// 90 budgets of 240,000 values, which took 930 MB, leave nothing to speak of in the cache of an
// informer, which takes them in one by one: also the first time, when there is a list of them.
func TestHostileBudgetsLeaveNoMemory(t *testing.T) {
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		t.Fatal("the objects that there are come as one list, of which all are in memory at a time")
	}
	const budgets = 90
	from := watch.NewFake()
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return nil, errors.New("asks for all in one list")
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return from, nil },
	}, &policyv1.PodDisruptionBudget{}, 0, nil)
	if err := informer.SetTransform(podstate.Trim); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(t.Context())
	heap := func() uint64 {
		goruntime.GC()
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range budgets {
		values := make([]string, 240_000)
		for j := range values {
			values[j] = strconv.Itoa(j)
		}
		from.Add(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: strconv.Itoa(i)}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: values}}}}})
	}
	from.Action(watch.Bookmark, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the cache did not fill")
	}
	// One such budget is 8 MB. Room for three that are on their way, and for other tests' garbage.
	if after := heap(); after > before+32<<20 || len(informer.GetStore().List()) != budgets {
		t.Errorf("%d MiB for %d budgets", (int64(after)-int64(before))>>20, len(informer.GetStore().List()))
	}
}

// What a pod says about where it goes is kept as far as it is read: all that is required while
// it is to be placed, and afterwards, or without a share, whom it keeps away from itself.
func TestTrimKeepsTermsThatAreRead(t *testing.T) {
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}
	node := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpExists}}}
	preferred := []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}
	of := func(edits ...func(*corev1.Pod)) *corev1.Pod {
		p := objects.Single("p", objects.Share(10, 100))
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
		podstate.TrimPod(tt.pod)
		if diff := cmp.Diff(want, tt.pod.Spec); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, trimmed := tt.pod.Annotations[podstate.AnnotationTrimmed]; trimmed != tt.trimmed {
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
			podstate.TrimPod(p)
			if got := p.Size(); before < 1<<20 || got > v1alpha1.MaxSchedulingBytes {
				t.Errorf("%s, %s: %d bytes are left of %d", name, kind, got, before)
			}
			if anti := p.Spec.Affinity; name == "anti-affinity" && (anti == nil || len(anti.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != v1alpha1.MaxSchedulingTerms/2) && kind != "gated" {
				t.Errorf("%s, %s: keeps %v", name, kind, anti)
			}
		}
	}
}

// What pods say of their groups is kept, but for a name that no PodGroup can have.
func TestGroupsOfPodsAreKept(t *testing.T) {
	kept := map[string]string{podrequest.AnnotationKueueTotal: "2", podrequest.AnnotationKueueFast: "true", podrequest.AnnotationKueueRole: "r", podrequest.AnnotationVolcanoGroup: "g"}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: maps.Clone(kept)}}
	p.Annotations[podrequest.VolcanoGate] = "true"
	if podstate.TrimPod(p); !maps.Equal(p.Annotations, kept) {
		t.Errorf("kept %v", p.Annotations)
	}
	p.Annotations = map[string]string{podrequest.AnnotationVolcanoGroup: strings.Repeat("g", 1<<18)}
	if podstate.TrimPod(p); len(p.Annotations) > 0 {
		t.Error("a name of 256 KiB is kept")
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
