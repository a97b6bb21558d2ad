// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

func newFilters(t *testing.T, objects ...runtime.Object) *Filters {
	t.Helper()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(podstate.Trim))
	f, err := New(t.Context(), client, factory)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), f.HasSynced) {
		t.Fatal("the filters did not fill")
	}
	return f
}

// gpuNode has 4 CPUs and 100 core; edits change it.
func gpuNode(name string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "zone": name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10"),
			v1alpha1.ResourceCore: resource.MustParse("100"),
		}},
	}
	for _, e := range edits {
		e(n)
	}
	return n
}

// gpuPod asks for 1 CPU and 30 core, gated; edits change it.
func gpuPod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}},
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1"), v1alpha1.ResourceCore: resource.MustParse("30")}}}},
		},
	}
	for _, e := range edits {
		e(p)
	}
	return p
}

func request(name corev1.ResourceName, amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(amount) }
}

func hostPort(p *corev1.Pod) {
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
}

func antiAffinity(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}}}
}

func spread(minDomains *int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: minDomains,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
	}
}

func claim(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
}

// inZone makes it a volume that any node of the zone reaches.
func inZone(zone string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Labels, v.Spec.NodeAffinity = map[string]string{corev1.LabelTopologyZone: zone}, nil
	}
}

// volume is a claim bound to a volume that only node b reaches; edits change it.
func volume(edits ...func(*corev1.PersistentVolume)) []runtime.Object {
	objects := []runtime.Object{
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pv", StorageClassName: ptr.To("local")},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data"},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "none"},
	}
	for _, edit := range edits {
		edit(objects[1].(*corev1.PersistentVolume))
	}
	return objects
}

func nodeAffinity(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}}}}}
	}
}

// affinity goes where a pod of the database is.
func affinity(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}}}
}

// Invariant 7: node a is refused for each of the reasons for which the default
// scheduler refuses a node.
func TestRefusals(t *testing.T) {
	tests := []struct {
		name string
		node func(*corev1.Node)
		// others are pods counted on node a.
		others  []*corev1.Pod
		objects []runtime.Object
		pod     func(*corev1.Pod)
		want    string
	}{
		{name: "accepted"},
		{name: "taint", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
		}, want: "node(s) had untolerated taint k=v:NoSchedule"},
		{name: "tolerated taint", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
		}, pod: func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }},
		{name: "cordoned", node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: "node(s) were unschedulable"},
		{name: "node selector", pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
			want: "node(s) didn't match node selector disk=ssd"},
		{name: "not ready", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		}, want: "node(s) had untolerated taint node.kubernetes.io/not-ready:NoSchedule"},
		{name: "taint that is only a preference", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectPreferNoSchedule}}
		}},
		{name: "node affinity", pod: nodeAffinity("zone", "b"), want: "node(s) didn't match Pod's node affinity/selector"},
		{name: "node affinity, met", pod: nodeAffinity("zone", "a")},
		{name: "memory", pod: request(corev1.ResourceMemory, "9Gi"), want: "Insufficient memory"},
		{name: "ephemeral storage", pod: request(corev1.ResourceEphemeralStorage, "2Gi"), want: "Insufficient ephemeral-storage"},
		{name: "extended resource", pod: request("example.com/nic", "1"), want: "Insufficient example.com/nic"},
		{name: "extended resource taken by others", node: func(n *corev1.Node) {
			n.Status.Allocatable["example.com/nic"] = resource.MustParse("1")
		}, others: []*corev1.Pod{gpuPod("o", request("example.com/nic", "1"))}, pod: request("example.com/nic", "1"), want: "Insufficient example.com/nic"},
		{name: "number of pods", node: func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") },
			others: []*corev1.Pod{gpuPod("o")}, want: "Too many pods"},
		{name: "cpu of an init container", pod: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5")}}}}
		}, want: "Insufficient cpu"},
		{name: "overhead", pod: func(p *corev1.Pod) {
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
		},
			want: "Insufficient cpu"},
		{name: "cpu", pod: request(corev1.ResourceCPU, "5"), want: "Insufficient cpu"},
		{name: "cpu taken by others", others: []*corev1.Pod{gpuPod("o", request(corev1.ResourceCPU, "3500m"))}, want: "Insufficient cpu"},
		{name: "sum of core", others: []*corev1.Pod{gpuPod("o", request(v1alpha1.ResourceCore, "80"))}, want: "Insufficient vernier.dev/gpu-core"},
		{name: "node without our resources", node: func(n *corev1.Node) { delete(n.Status.Allocatable, v1alpha1.ResourceCore) },
			want: "Insufficient vernier.dev/gpu-core"},
		{name: "host port", others: []*corev1.Pod{gpuPod("o", hostPort)}, pod: hostPort, want: "node(s) didn't have free ports"},
		{name: "anti-affinity", others: []*corev1.Pod{gpuPod("o")}, pod: antiAffinity, want: "node(s) didn't match pod anti-affinity rules"},
		{name: "anti-affinity of the other", others: []*corev1.Pod{gpuPod("o", antiAffinity)}, want: "node(s) didn't satisfy existing pods anti-affinity rules"},
		{name: "affinity", pod: affinity, want: "node(s) didn't match pod affinity rules"},
		{name: "affinity, met", others: []*corev1.Pod{gpuPod("o", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })}, pod: affinity},
		{name: "spread", others: []*corev1.Pod{gpuPod("o")}, pod: spread(nil), want: "node(s) didn't match pod topology spread constraints"},
		{name: "spread, even", pod: spread(nil)},
		{name: "volume elsewhere", objects: volume(), pod: claim, want: "node(s) didn't match PersistentVolume's node affinity"},
		{name: "volume of another zone", node: func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "east" },
			objects: volume(inZone("west")), pod: claim, want: "node(s) had no available volume zone"},
		{name: "volume of the zone", node: func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "west" },
			objects: volume(inZone("west")), pod: claim},
		{name: "no volume", pod: claim, want: `persistentvolumeclaim "data" not found`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilters(t, tt.objects...)
			a := gpuNode("a")
			if tt.node != nil {
				tt.node(a)
			}
			f.SetNode(a)
			f.SetNode(gpuNode("b"))
			for _, o := range tt.others {
				if _, err := f.Count(o, "a"); err != nil {
					t.Fatal(err)
				}
			}
			p := gpuPod("p")
			if tt.pod != nil {
				tt.pod(p)
			}
			if got := refusals(t, f, p, "a"); !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func refusals(t *testing.T, f *Filters, p *corev1.Pod, node string) string {
	t.Helper()
	c, err := f.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := c.Refusals(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(reasons, "; ")
}

// Invariant 7: topology spread with minDomains counts the domains that the node
// affinity leaves. A pin leaves one, so a second pod there would be refused after
// the pin although the unpinned pod is accepted.
func TestThePinItselfIsJudged(t *testing.T) {
	f := newFilters(t)
	f.SetNode(gpuNode("a"))
	f.SetNode(gpuNode("b"))
	for _, n := range []string{"a", "b"} {
		if _, err := f.Count(gpuPod("on-"+n), n); err != nil {
			t.Fatal(err)
		}
	}
	if got := refusals(t, f, gpuPod("p", spread(ptr.To[int32](2))), "a"); got == "" {
		t.Error("the pinned pod is accepted, but the scheduler would refuse it")
	}
	if got := refusals(t, f, gpuPod("p", spread(nil)), "a"); got != "" {
		t.Error(got)
	}
}

func TestCountFollowsThePod(t *testing.T) {
	f := newFilters(t)
	f.SetNode(gpuNode("a"))
	big := gpuPod("big", request(v1alpha1.ResourceCore, "80"))
	count := func(p *corev1.Pod, node string) error { _, err := f.Count(p, node); return err }
	steps := []struct {
		name string
		do   func() error
		want string
	}{
		{"placed, not bound", func() error { return count(big, "a") }, "Insufficient vernier.dev/gpu-core"},
		{"bound", func() error { b := big.DeepCopy(); b.Spec.NodeName = "a"; return count(b, "a") }, "Insufficient vernier.dev/gpu-core"},
		{"finished", func() error { return count(big, "") }, ""},
		{"finished, seen again", func() error { return count(big, "") }, ""},
		{"another node", func() error { return count(big, "b") }, ""},
		{"back", func() error { return count(big, "a") }, "Insufficient vernier.dev/gpu-core"},
		{"node gone", func() error { return f.DeleteNode("a") }, "node is not known"},
		{"node gone, seen again", func() error { return f.DeleteNode("a") }, "node is not known"},
		{"node back", func() error { f.SetNode(gpuNode("a")); return nil }, "Insufficient vernier.dev/gpu-core"},
		{"node changed", func() error {
			f.SetNode(gpuNode("a", func(n *corev1.Node) { n.Status.Allocatable[v1alpha1.ResourceCore] = resource.MustParse("200") }))
			return nil
		}, ""},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if got := refusals(t, f, gpuPod("p"), "a"); got != s.want {
			t.Errorf("%s: got %q, want %q", s.name, got, s.want)
		}
	}
}

// Host shows what the filters count by, and which nodes Kubernetes keeps pods off.
func TestHost(t *testing.T) {
	f := newFilters(t)
	host := func(node string, want Host) {
		t.Helper()
		if _, err := f.Changed(); err != nil {
			t.Fatal(err)
		}
		if got := f.Host(node); got != want {
			t.Errorf("%s: got %+v, want %+v", node, got, want)
		}
	}
	shut := Host{CPU: 4000, Cores: 4000, Memory: 8 << 30, Shut: true}
	open := shut
	open.Shut = false
	host("none", Host{Shut: true})
	f.SetNode(gpuNode("a"))
	host("a", open)
	for name, edit := range map[string]func(*corev1.Node){
		"cordoned": func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"not ready": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}
		},
	} {
		f.SetNode(gpuNode(name, edit))
		host(name, shut)
	}
	f.SetNode(gpuNode("taint of its owner", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}
	}))
	host("taint of its owner", open)

	p := gpuPod("p")
	if _, err := f.Count(p, "a"); err != nil {
		t.Fatal(err)
	}
	if cpu, memory := Asks(p); cpu != 1000 || memory != 0 {
		t.Errorf("the pod asks for %d and %d", cpu, memory)
	}
	host("a", Host{CPU: 3000, Cores: 4000, Memory: 8 << 30})
	f.SetNode(gpuNode("a", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }))
	host("a", Host{CPU: 3000, Cores: 4000, Memory: 8 << 30, Shut: true})
	if _, err := f.Count(p, ""); err != nil {
		t.Fatal(err)
	}
	host("a", open)
	if err := f.DeleteNode("a"); err != nil {
		t.Fatal(err)
	}
	host("a", Host{Shut: true})

	names, err := f.Changed()
	if err != nil || len(names) != 0 {
		t.Errorf("changed again: %v, %v", names, err)
	}
	if _, err := f.Count(p, "b"); err != nil {
		t.Fatal(err)
	}
	if names, err = f.Changed(); err != nil || !slices.Equal(names, []string{"b"}) {
		t.Errorf("changed: %v, %v", names, err)
	}
}

// Of a pod that stays where it is, only what it takes and its labels are news to others,
// and that it is on its way out.
func TestCountTellsWhatMattersToOthers(t *testing.T) {
	f := newFilters(t)
	f.SetNode(gpuNode("a"))
	cpu := func(amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount), v1alpha1.ResourceCore: resource.MustParse("30")}
	}
	asks := func(amount string) func(*corev1.Pod) { return request(corev1.ResourceCPU, amount) }
	// has is what its node says that the container has.
	has := func(amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: cpu(amount), Resources: &corev1.ResourceRequirements{Requests: cpu(amount)}}}
		}
	}
	pending := func(reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason}}
		}
	}
	beside := func(amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}}}
		}
	}
	inAll := func(amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Requests: cpu(amount)} }
	}
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }
	for i, tt := range []struct {
		now  *corev1.Pod
		want bool
	}{
		{gpuPod("p"), true},
		{gpuPod("p", func(p *corev1.Pod) { p.Spec.Containers[0].Image, p.Status.Phase = "new", corev1.PodRunning }), false},
		{gpuPod("p", asks("1000m")), false},
		{gpuPod("p", asks("500m")), true},
		{gpuPod("p", asks("500m"), func(p *corev1.Pod) { p.Labels["app"] = "y" }), true},
		// Its node begins to say what it has, which is what it asks for.
		{gpuPod("p", asks("2")), true},
		{gpuPod("p", asks("2"), has("2")), false},
		// It asks for less, and takes less when its node has seen to it.
		{gpuPod("p", asks("1"), has("2")), false},
		{gpuPod("p", asks("1"), has("1")), true},
		// It asks for more, which its node then says it cannot have.
		{gpuPod("p", asks("3"), has("1")), true},
		{gpuPod("p", asks("3"), has("1"), pending(corev1.PodReasonDeferred)), false},
		{gpuPod("p", asks("3"), has("1"), pending(corev1.PodReasonInfeasible)), true},
		{gpuPod("p", asks("1"), has("1")), false},
		{gpuPod("p", asks("1"), has("1"), beside("2")), true},
		{gpuPod("p", asks("1"), has("1"), beside("1")), true},
		{gpuPod("p", asks("1"), has("1"), beside("1"), inAll("4")), true},
		{gpuPod("p", asks("1"), has("1"), beside("1"), inAll("3")), true},
		{gpuPod("p", asks("1"), has("1"), beside("1"), inAll("3"), leaving), true},
		{gpuPod("p", asks("1"), has("1"), beside("1"), inAll("3"), leaving), false},
	} {
		if changed, err := f.Count(tt.now, "a"); err != nil || changed != tt.want {
			t.Errorf("%d: %v, %v, want %v: %v", i, changed, err, tt.want, tt.now)
		}
	}
}

// Invariant 7: the room that the scheduler has made for a pod is kept from pods of the same
// and of lower priority, until the pod is counted or gives it up.
func TestNominate(t *testing.T) {
	f := newFilters(t)
	f.SetNode(gpuNode("a"))
	urgent := func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](10) }
	nominated := gpuPod("n", request(corev1.ResourceCPU, "4"), urgent)
	for _, step := range []struct {
		node    string
		changed bool
		want    string
	}{{"a", true, "Insufficient cpu"}, {"a", false, "Insufficient cpu"}, {"b", true, ""}, {"a", true, "Insufficient cpu"}, {"", true, ""}, {"", false, ""}} {
		if changed, err := f.Nominate(nominated, step.node); err != nil || changed != step.changed {
			t.Errorf("nominated to %q: changed %v, %v", step.node, changed, err)
		}
		for _, p := range []*corev1.Pod{gpuPod("p"), gpuPod("equal", urgent)} {
			if got := refusals(t, f, p, "a"); got != step.want {
				t.Errorf("nominated to %q: pod %s: %q, want %q", step.node, p.Name, got, step.want)
			}
		}
		if got := refusals(t, f, gpuPod("above", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](11) }), "a"); got != "" {
			t.Errorf("of higher priority: %q", got)
		}
	}
	if len(f.nominated)+len(f.nominatedTo) > 0 {
		t.Errorf("remembered: %v, %v", f.nominated, f.nominatedTo)
	}
}
