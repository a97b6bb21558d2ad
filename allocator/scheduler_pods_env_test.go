// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

const nic = "example.com/nic"

// chance is true so many times in a hundred.
func (l *lab) chance(percent int) bool { return l.Intn(100) < percent }

func oneOf[T any](l *lab, of ...T) T { return of[l.Intn(len(of))] }

// host and zone are the lab's own labels of nodes, so that nodes of other labs are in
// no domain of this one, whatever a pod's policy.
func (l *lab) host() string { return "host-" + l.name }
func (l *lab) zone() string { return "zone-" + l.name }

func (l *lab) someZone() string { return oneOf(l, "a", "b", "c") }
func (l *lab) someKey() string  { return oneOf(l, l.host(), l.zone(), l.zone()) }

// someApp selects some pods of the lab.
func (l *lab) someApp() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": oneOf(l, "x", "y", "z")}}
}

// anyNode makes it a node with random labels, taints and capacities.
func (l *lab) anyNode(n *corev1.Node) {
	n.Labels = map[string]string{"lab": l.name, l.host(): n.Name, "disk": oneOf(l, "ssd", "hdd")}
	if l.chance(85) {
		n.Labels[l.zone()] = l.someZone()
	}
	has := n.Status.Allocatable
	has[corev1.ResourceCPU] = *resource.NewQuantity(int64(2+l.Intn(8)), resource.DecimalSI)
	has[corev1.ResourceMemory] = *resource.NewQuantity(int64(4+l.Intn(12))<<30, resource.BinarySI)
	has[corev1.ResourcePods] = *resource.NewQuantity(int64(4+l.Intn(10)), resource.DecimalSI)
	has[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(5<<30, resource.BinarySI)
	has[nic] = *resource.NewQuantity(int64(l.Intn(3)), resource.DecimalSI)
	taint := func(key string, effect corev1.TaintEffect) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "x", Effect: effect})
	}
	switch l.Intn(10) {
	case 0, 1:
		taint("dedicated", corev1.TaintEffectNoSchedule)
	case 2:
		taint("dedicated", corev1.TaintEffectNoExecute)
	case 3:
		taint("dedicated", corev1.TaintEffectPreferNoSchedule)
	case 4:
		taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)
	case 5:
		n.Spec.Unschedulable = true
	}
}

// anyPod is a gated pod with a share and random wishes of everything that the
// scheduler filters by.
func (l *lab) anyPod(name string) *corev1.Pod {
	shares := map[string]v1alpha1.Share{"a": objects.Share(v1alpha1.Percent(1+l.Intn(60)), v1alpha1.MiB(1+l.Intn(400)))}
	if l.chance(15) {
		shares["b"] = objects.Share(v1alpha1.Percent(l.Intn(20)), 50)
	}
	if l.chance(10) {
		shares["a"] = v1alpha1.Share{GPUs: 2, Core: v1alpha1.Percent(60 + 10*l.Intn(5)), MemMiB: 100}
	}
	p := objects.Pod(name, shares)
	p.Namespace, p.Labels = l.name, map[string]string{"app": oneOf(l, "x", "y", "z"), "version": oneOf(l, "1", "2")}
	p.Spec.NodeSelector = map[string]string{"lab": l.name}
	requests := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(l.Intn(2500)), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(l.Intn(4))<<30, resource.BinarySI),
	}
	maps.Copy(requests, p.Spec.Containers[0].Resources.Requests)
	p.Spec.Containers[0].Resources.Requests = requests
	for _, w := range []struct {
		percent int
		wish    func(*corev1.Pod)
	}{
		{10, l.wantDisk}, {10, l.wantNIC}, {10, l.wantStorage}, {10, l.wantInit}, {10, l.wantSidecar}, {10, l.wantOfPod}, {20, l.wantPort}, {20, l.wantVolume}, {20, l.wantCards},
		{45, l.tolerate}, {25, l.wantNodes}, {15, l.wantCompany}, {20, l.wantDistance}, {30, l.wantSpread},
	} {
		if l.chance(w.percent) {
			w.wish(p)
		}
	}
	return p
}

func (l *lab) wantDisk(p *corev1.Pod) { p.Spec.NodeSelector["disk"] = "ssd" }

func (l *lab) wantNIC(p *corev1.Pod) {
	r := &p.Spec.Containers[0].Resources
	r.Limits = maps.Clone(r.Limits)
	r.Limits[nic], r.Requests[nic] = resource.MustParse("1"), resource.MustParse("1")
}

func (l *lab) wantStorage(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(1+l.Intn(4))<<30, resource.BinarySI)
}

func (l *lab) wantInit(p *corev1.Pod) {
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(1+l.Intn(6)), resource.DecimalSI)}}}}
}

// wantSidecar adds a container that is started before the others and goes on beside them.
func (l *lab) wantSidecar(p *corev1.Pod) {
	p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "sidecar", Image: "i", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(500+l.Intn(2000)), resource.DecimalSI)}}})
}

// wantOfPod asks for CPU for the pod as a whole: as much as any of its containers may, at
// least.
func (l *lab) wantOfPod(p *corev1.Pod) {
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(6+l.Intn(4)), resource.DecimalSI)}}
}

func (l *lab) wantPort(p *corev1.Pod) {
	port := int32(8000 + l.Intn(2))
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: port, HostPort: port, HostIP: oneOf(l, "", "0.0.0.0", "127.0.0.1", "127.0.0.2")}}
}

func (l *lab) wantVolume(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: oneOf(l, claims...)}}}}
}

func (l *lab) tolerate(p *corev1.Pod) {
	t := corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists}
	switch l.Intn(5) {
	case 0:
		t.Key = ""
	case 1:
		t.Effect = corev1.TaintEffectNoSchedule
	case 2:
		t.Operator, t.Value = corev1.TolerationOpEqual, oneOf(l, "x", "y")
	case 3:
		t.Effect, t.TolerationSeconds = corev1.TaintEffectNoExecute, ptr.To(int64(3600))
	}
	p.Spec.Tolerations = append(p.Spec.Tolerations, t)
}

func affinityOf(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	return p.Spec.Affinity
}

func (l *lab) wantNodes(p *corev1.Pod) {
	wanted := &corev1.NodeSelector{}
	for range 1 + l.Intn(2) {
		e := corev1.NodeSelectorRequirement{Key: l.zone(), Operator: oneOf(l, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{l.someZone(), "a"}}
		switch l.Intn(4) {
		case 0:
			e.Key, e.Values = "disk", []string{"ssd"}
		case 1:
			e.Operator, e.Values = oneOf(l, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist), nil
		}
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}}
		if l.chance(25) {
			term.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField,
				Operator: oneOf(l, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn), Values: []string{oneOf(l, l.nodes...)}}}
			if l.chance(50) {
				term.MatchExpressions = nil
			}
		}
		wanted.NodeSelectorTerms = append(wanted.NodeSelectorTerms, term)
	}
	affinityOf(p).NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: wanted}
	if l.chance(30) {
		p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"hdd"}}}}}}
	}
}

func (l *lab) term() []corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: l.someKey(), LabelSelector: l.someApp()}
	switch l.Intn(10) {
	case 0, 1:
		t.MatchLabelKeys = []string{"version"}
	case 2:
		t.MismatchLabelKeys = []string{"version"}
	case 3:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: oneOf(l, l.name, "ns")}}
	case 4:
		t.Namespaces, t.NamespaceSelector = []string{oneOf(l, l.name, "ns")}, nil
	}
	return []corev1.PodAffinityTerm{t}
}

func (l *lab) wantCompany(p *corev1.Pod) {
	affinityOf(p).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: l.term()}
}

func (l *lab) wantDistance(p *corev1.Pod) {
	affinityOf(p).PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: l.term()}
}

func (l *lab) wantSpread(p *corev1.Pod) {
	c := corev1.TopologySpreadConstraint{MaxSkew: int32(1 + l.Intn(2)), TopologyKey: l.someKey(), WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: l.someApp()}
	if l.chance(15) {
		c.WhenUnsatisfiable = corev1.ScheduleAnyway
	} else if l.chance(30) {
		c.MinDomains = ptr.To(int32(1 + l.Intn(4)))
	}
	if l.chance(40) {
		c.NodeTaintsPolicy = ptr.To(oneOf(l, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if l.chance(40) {
		c.NodeAffinityPolicy = ptr.To(oneOf(l, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if l.chance(30) {
		c.MatchLabelKeys = []string{"version"}
	}
	p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
}

// alikePod is a small pod of an app of its own, spread over at least two zones. As its
// owner wrote it, the second in a zone may go to the node of the first, which is where it
// packs best; pinned there it may not, as the pin leaves one zone of the two that it wants.
func (l *lab) alikePod(name string) *corev1.Pod {
	p := objects.Pod(name, map[string]v1alpha1.Share{"a": objects.Share(1, 1)})
	p.Namespace, p.Labels = l.name, map[string]string{"app": "alike"}
	p.Spec.NodeSelector = map[string]string{"lab": l.name}
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: l.zone(), WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}, MinDomains: ptr.To(int32(2))}}
	return p
}

// claims of the lab: of a volume that one zone reaches, of one that a node does, and
// of one that only one pod at a time may use.
var claims = []string{"zonal", "local", "exclusive"}

// limitVolumes has some nodes attach few volumes at a time.
func (l *lab) limitVolumes(ctx context.Context, node string) {
	if !l.chance(40) {
		return
	}
	l.must(l.Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
		Name: "example.com", NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(l.Intn(3)))}}}}}))
}

// addVolumes makes the claims, bound, as a volume controller leaves them.
func (l *lab) addVolumes(ctx context.Context) {
	for _, name := range claims {
		reach := corev1.NodeSelectorRequirement{Key: l.zone(), Operator: corev1.NodeSelectorOpIn, Values: []string{l.someZone(), l.someZone()}}
		mode := corev1.ReadWriteMany
		switch name {
		case "local":
			reach.Key, reach.Values = l.host(), []string{oneOf(l, l.nodes...)}
		case "exclusive":
			mode = corev1.ReadWriteOncePod
		}
		size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: l.name + "-" + name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			ClaimRef:               &corev1.ObjectReference{Namespace: l.name, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com", VolumeHandle: l.name + name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{reach}}}}}}}
		l.must(l.Create(ctx, v))
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: l.name, Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: v.Name, StorageClassName: ptr.To(""), AccessModes: v.Spec.AccessModes,
				Resources: corev1.VolumeResourceRequirements{Requests: size}}}
		l.must(l.Create(ctx, c))
		c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: v.Spec.AccessModes, Capacity: size}
		l.must(l.Status().Update(ctx, c))
	}
}
