// SPDX-License-Identifier: Apache-2.0

package eventhandlers

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Each kind of object that a decision reads is in the table, and none is there that nobody reads.
func TestHints_HaveAllThatIsRead(t *testing.T) {
	h, _ := newHandlers(t)
	read := append(h.Filters.Kinds(), reflect.TypeFor[*corev1.Pod](), reflect.TypeFor[*corev1.Node](),
		reflect.TypeFor[*v1alpha1.SliceLedger](), reflect.TypeFor[*v1alpha1.GPUClass](), reflect.TypeFor[*podgroup.Sizes]())
	var hinted []reflect.Type
	for _, hint := range hints {
		kind := reflect.TypeOf(hint.object)
		hinted = append(hinted, kind)
		switch hint.object.(type) {
		case *schedulingv1.PriorityClass, *corev1.ResourceQuota, *corev1.Service, *corev1.ReplicationController, *appsv1.ReplicaSet, *appsv1.StatefulSet:
			if hint.moves != none || slices.Contains(read, kind) {
				t.Errorf("%v is said not to be read", kind)
			}
		default:
			if !slices.Contains(read, kind) {
				t.Errorf("%v is in the table, and nobody reads it", kind)
			}
		}
		if hint.what == "" {
			t.Errorf("%v: nothing says what of it is read", kind)
		}
	}
	for _, kind := range read {
		if !slices.Contains(hinted, kind) {
			t.Errorf("decisions read %v, and no row says whom a change of it moves", kind)
		}
	}
}

// bound is a pod that counts on a node, without a share.
func bound(version string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "other", ResourceVersion: version}, Spec: corev1.PodSpec{NodeName: "n0",
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}}}
	for _, e := range edits {
		e(p)
	}
	return p
}

// What the scheduler's own plugins say may turn their refusals into acceptances moves the pods that
// are refused.
func TestHints_HaveAllEventsOfPlugins(t *testing.T) {
	h, work := newHandlers(t)
	node := objects.Node("n0")
	h.SetNode(nil, node)
	waits := pod("waits", "1")
	h.SetPod(waits)
	h.Queue.MarkUnschedulable([]*corev1.Pod{waits}, true, notify.Why{Key: "refused", Text: "why"})
	version := 1
	// itself is the waiting pod that is changed: it is looked at as such.
	itself := func(edit func(*corev1.Pod)) {
		version++
		waits = waits.DeepCopy()
		waits.ResourceVersion = fmt.Sprint(version)
		edit(waits)
		h.SetPod(waits)
	}
	edited := func(edit func(*corev1.Node)) {
		is := node.DeepCopy()
		edit(is)
		h.SetNode(node, is)
	}
	other := func(edits ...func(*corev1.Pod)) {
		version++
		h.SetPod(bound(fmt.Sprint(version), edits...))
	}
	does := map[fwk.EventResource]map[fwk.ActionType]func(){
		fwk.Node: {
			fwk.Add:                       func() { h.SetNode(nil, node) },
			fwk.Delete:                    func() { h.DeleteNode(node); h.Filters.SetNode(node) },
			fwk.UpdateNodeAllocatable:     func() { edited(func(n *corev1.Node) { delete(n.Status.Allocatable, corev1.ResourceMemory) }) },
			fwk.UpdateNodeLabel:           func() { edited(func(n *corev1.Node) { n.Labels["zone"] = "a" }) },
			fwk.UpdateNodeTaint:           func() { edited(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }) },
			fwk.UpdateNodeDeclaredFeature: func() { edited(func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"f"} }) },
		},
		fwk.Pod: {
			fwk.Add:                func() { other() },
			fwk.UpdatePodLabel:     func() { other(objects.Labelled("x")) },
			fwk.UpdatePodScaleDown: func() { other(func(p *corev1.Pod) { p.Spec.Containers = nil }) },
			fwk.Delete:             func() { h.DeletePod(bound(fmt.Sprint(version)), true) },

			fwk.UpdatePodToleration: func() { itself(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k"}} }) },
			fwk.UpdatePodGeneratedResourceClaim: func() {
				itself(func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{}} })
			},
			fwk.UpdatePodSchedulingGatesEliminated: func() { itself(func(p *corev1.Pod) { p.Labels = map[string]string{"gate": "off"} }) },
		},
		fwk.PodGroup: {fwk.Add: func() {
			h.SetPod(pod("member", fmt.Sprint(version), objects.InGang("g", 2)))
			due(h, work)
			name, _ := podrequest.GroupOf(pod("member", "", objects.InGang("g", 2)))
			h.GroupChanged(name)
		}},
	}
	for kind, example := range map[fwk.EventResource]any{
		fwk.PersistentVolume: &corev1.PersistentVolume{}, fwk.PersistentVolumeClaim: &corev1.PersistentVolumeClaim{},
		fwk.CSINode: &storagev1.CSINode{}, fwk.CSIDriver: &storagev1.CSIDriver{}, fwk.VolumeAttachment: &storagev1.VolumeAttachment{},
		fwk.CSIStorageCapacity: &storagev1.CSIStorageCapacity{}, fwk.StorageClass: &storagev1.StorageClass{},
		fwk.ResourceClaim: &resourcev1.ResourceClaim{}, fwk.ResourceSlice: &resourcev1.ResourceSlice{}, fwk.DeviceClass: &resourcev1.DeviceClass{},
	} {
		does[kind] = map[fwk.ActionType]func(){
			fwk.Add: func() { h.Changed(nil, example) }, fwk.Delete: func() { h.Changed(example, nil) }, fwk.Update: func() { h.Changed(example, example) },
		}
	}
	events, err := h.Filters.Events(t.Context())
	if err != nil || len(events) < 20 {
		t.Fatalf("%d events of plugins: %v", len(events), err)
	}
	for _, e := range events {
		if e.Resource == fwk.WildCard {
			continue // a plugin that does not say
		}
		if does[e.Resource] == nil {
			t.Errorf("a plugin reads %s: nothing says whom a change of it moves", e.Resource)
		}
		left := e.ActionType
		for _, action := range []fwk.ActionType{ // in an order that is possible
			fwk.Update, fwk.Add, fwk.UpdatePodLabel, fwk.UpdatePodScaleDown, fwk.Delete, fwk.UpdateNodeAllocatable, fwk.UpdateNodeLabel, fwk.UpdateNodeTaint,
			fwk.UpdateNodeDeclaredFeature, fwk.UpdatePodToleration, fwk.UpdatePodGeneratedResourceClaim, fwk.UpdatePodSchedulingGatesEliminated,
		} {
			do := does[e.Resource][action]
			if do == nil || e.ActionType&action != action {
				continue
			}
			left &^= action
			if e.Resource == fwk.Pod && action&(fwk.UpdatePodLabel|fwk.UpdatePodScaleDown|fwk.Delete) != 0 {
				other() // there it is before
			}
			due(h, work)
			moves := h.Queue.Moves()
			if do(); h.Queue.Moves() == moves && due(h, work) == "" {
				t.Errorf("%s %v moves nobody", e.Resource, action)
			}
		}
		if e.Resource == fwk.Pod || e.Resource == fwk.Node {
			// Of what is meant as any update the actions of the other kind are no matter.
			if e.ActionType&fwk.Update == fwk.Update {
				left &^= fwk.Update
			}
		}
		if left != 0 {
			t.Errorf("a plugin reads %s, %b of it is not tried", e.Resource, left)
		}
	}
}

// What may let victims be evicted is told, with their namespace; a heartbeat, or what changes nothing
// of that, is not.
func TestHints_OnVictims(t *testing.T) {
	h, _ := newHandlers(t)
	var sent []string
	h.OnVictims(func(namespace string) { sent = append(sent, namespace) })
	ready := func(is corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is}}
		}
	}
	placed := func(p *corev1.Pod) { p.Spec.SchedulingGates, p.Spec.NodeName = nil, "n0" }
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	labelled := ns.DeepCopy()
	labelled.Labels = map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}}
	for _, step := range []struct {
		what string
		want []string
		do   func()
	}{
		{"a new pod", nil, func() { h.SetPod(pod("p", "1", placed)) }},
		{"a plain pod", nil, func() { h.SetPod(bound("1")) }},
		{"it becomes ready", []string{"ns"}, func() { h.SetPod(pod("p", "2", placed, ready(corev1.ConditionTrue))) }},
		{"another condition of it", nil, func() {
			h.SetPod(pod("p", "3", placed, func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodInitialized}}
			}))
		}},
		{"it is not ready any more", []string{"ns"}, func() { h.SetPod(pod("p", "4", placed, ready(corev1.ConditionFalse))) }},
		{"its labels", []string{"ns"}, func() { h.SetPod(pod("p", "5", placed, objects.Labelled("x"))) }},
		{"it fails", []string{"ns"}, func() {
			h.SetPod(pod("p", "6", placed, objects.Labelled("x"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
		}},
		{"a budget comes", []string{"ns"}, func() { h.Changed(nil, budget) }},
		{"it changes", []string{"ns"}, func() { h.Changed(budget, budget) }},
		{"it goes", []string{"ns"}, func() { h.Changed(budget, nil) }},
		{"the namespace", nil, func() { h.Changed(ns, ns) }},
		{"labels of the namespace", []string{"ns"}, func() { h.Changed(ns, labelled) }},
		{"a PodGroup", []string{"ns"}, func() { h.GroupChanged(podrequest.Group{API: podrequest.Native, Namespace: "ns", Name: "g"}) }},
		{"all PodGroups", []string{""}, func() { h.GroupsChanged(podrequest.Native) }},
		{"a claim", nil, func() { h.Changed(nil, &corev1.PersistentVolumeClaim{}) }},
	} {
		sent = nil
		if step.do(); !slices.Equal(sent, step.want) {
			t.Errorf("%s: events %q, want %q", step.what, sent, step.want)
		}
	}
}
