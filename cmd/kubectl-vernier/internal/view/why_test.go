// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	ledgers "vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// gatedPod asks for 90 % of a GPU's compute and waits.
func gatedPod(name string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Annotations: map[string]string{
			v1alpha1.AnnotationShares: `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":90,"memPercent":50}}}`}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}},
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func eventOf(uid types.UID, at int64, message string) corev1.Event {
	return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Namespace: "ns", Name: string(uid), UID: uid},
		Reason: "R", Message: message, LastTimestamp: metav1.Unix(at, 0)}
}

// Why a placed pod does not start comes from its containers, the kubelet or the ledger.
func TestWhy_WhenAPlacedPodDoesNotStart(t *testing.T) {
	placed := func(edit func(*corev1.Pod)) []corev1.Pod {
		p := placedPod("p", "gpu-1")
		edit(&p)
		return []corev1.Pod{p}
	}
	for _, tt := range []struct {
		name string
		pods []corev1.Pod
		want string
	}{
		{"no sandbox", placed(func(*corev1.Pod) {}), "it is on node gpu-1, pending; the kubelet says: R (2 times): no network"},
		{"not bound", placed(func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"}}
		}), "it has its place on node gpu-1, and the scheduler has not bound it yet: 0/1 nodes are available"},
		{"near each other", placed(func(p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationTopology] = "nvlink"
			p.Annotations[v1alpha1.AnnotationPlacement] = strings.Replace(p.Annotations[v1alpha1.AnnotationPlacement], `"node"`, `"topology":"numa","node"`, 1)
			p.Status.Phase = corev1.PodRunning
		}), "it does not wait for Vernier: it is on node gpu-1 (topology numa, asked for nvlink), running"},
		{"not looked at", placed(func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "gated"}}
		}), "it has its place on node gpu-1, and the scheduler has not bound it yet: `kubectl describe pod` says why"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			from := Evidence{Kubelet: []corev1.Event{eventOf("p", 2, "no network"), eventOf("p", 1, "older"), eventOf("other", 3, "of another pod")}}
			if got := Why(tt.pods, from)[0].State; got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// Where there is room the level of topology is said, for a pod that asks for some.
func TestFit_NamesTheLevel(t *testing.T) {
	ledger := v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	ledger.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	for i := range 2 {
		ledger.Status.Devices = append(ledger.Status.Devices, v1alpha1.DeviceStatus{UUID: fmt.Sprint("GPU-", i), Index: int32(i), Model: "A100", Mem: 1000, Healthy: true})
	}
	ledger.Status.Topology = &v1alpha1.TopologyStatus{NUMA: []v1alpha1.DeviceSet{"0-1"}}
	demand := &placement.Demand{Containers: []placement.Container{{Name: "c", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 2, Core: 10, MemMiB: 10}}}}
	for wish, want := range map[string]string{"": "c: GPU 0, c: GPU 1", "nvlink": "c: GPU 0, c: GPU 1 (numa)"} {
		demand.Topology, _ = v1alpha1.ParseTopology(wish)
		if rows := FitTable(FitIn(demand, []v1alpha1.SliceLedger{ledger}, Kept{}, ledgers.Room, func(string) string { return "" })).rows; len(rows) != 1 || rows[0][4] != want {
			t.Errorf("%q: %v, want %q", wish, rows, want)
		}
	}
}

// A node that the pod does not select, or whose taint it does not tolerate, is none with room for it; nor is
// there room for a pod whose gang is incomplete or whose claim is missing.
func TestHostileWhy_WhenThePodCanNeverRun(t *testing.T) {
	ledger := v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	ledger.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	ledger.Status.Devices = []v1alpha1.DeviceStatus{{UUID: "GPU-a", Model: "T4", Mem: 15360, Healthy: true}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"zone": "a"}}}
	tainted := node.DeepCopy()
	tainted.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	const off = "the scheduler refuses 1 node(s) with room, such as gpu-1: node(s) had untolerated taint k:NoSchedule"
	const unselected = "the scheduler refuses 1 node(s) with room, such as gpu-1: node(s) didn't match node selector zone=none"
	for name, tt := range map[string]struct {
		node   *corev1.Node
		edit   func(*corev1.Pod)
		claims map[string]Claim
		reason string // of the node
		hint   string
		room   bool
	}{
		"it may run there":       {node: node, room: true},
		"nothing is known of it": {edit: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} }, room: true},
		"another selector":       {node: node, edit: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} }, reason: unselected},
		"a taint":                {node: tainted, reason: off},
		"a gang of one": {node: node, edit: func(p *corev1.Pod) {
			p.Labels = map[string]string{podrequest.LabelKueue: "g"}
			p.Annotations[podrequest.AnnotationKueueTotal] = "2"
		}, hint: "Kueue's pod group ns/g: 1 of 2 pods are there; they start together (annotation kueue.x-k8s.io/pod-group-total-count)"},
		"a claim": {node: node, edit: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		}, claims: map[string]Claim{"data": {}}, hint: "PersistentVolumeClaim data does not exist: create it"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := gatedPod("p")
			if tt.edit != nil {
				tt.edit(&pod)
			}
			from := Evidence{Ledgers: []v1alpha1.SliceLedger{ledger}, Nodes: map[string]*corev1.Node{"gpu-1": tt.node}, Around: Around{Pods: []corev1.Pod{pod}, Claims: tt.claims}}
			got := Why([]corev1.Pod{pod}, from)[0]
			if strings.Contains(got.State, "there is room") != tt.room || got.Classes[0].Reason != tt.reason {
				t.Errorf("%q, the node: %q, want %q", got.State, got.Classes[0].Reason, tt.reason)
			}
			if hints := strings.Join(got.Hints, "\n"); hints != tt.hint {
				t.Errorf("hints %q, want %q", hints, tt.hint)
			}
		})
	}
}

// Who has cordoned the only GPU, and why, is among the reasons.
func TestWhy_WhenTheGPUIsCordoned(t *testing.T) {
	l := v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: "GPU-a", Model: "T4", Mem: 15360, Healthy: true}}
	l.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-a", By: "ops", Reason: "fans", Since: metav1.Unix(0, 0)}}
	classes := Why([]corev1.Pod{gatedPod("p")}, Evidence{Ledgers: []v1alpha1.SliceLedger{l}})[0].Classes
	if len(classes) != 1 || !strings.Contains(classes[0].Reason, "ops") || !strings.Contains(classes[0].Reason, "fans") {
		t.Errorf("%+v", classes)
	}
}

func TestGroup_PutsPodsTogetherThatWaitForTheSame(t *testing.T) {
	running, other := gatedPod("r"), gatedPod("z")
	running.Status.Phase, running.Spec.SchedulingGates = corev1.PodRunning, nil
	other.Spec.SchedulingGates = append(other.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/quota"})
	all := Why([]corev1.Pod{gatedPod("a"), gatedPod("b"), running, other},
		Evidence{Verdicts: []corev1.Event{eventOf("a", 1, "older"), eventOf("b", 2, "newer")}})
	groups := Group(all)
	if len(groups) != 2 || groups[0].Pods != 2 || groups[0].Pod != "a" || groups[0].Reason.Message != "newer" || groups[1].Pod != "z" {
		t.Errorf("%+v", groups)
	}
	if got, want := Summary(all), "4 pods: 3 wait for a place, 1 running"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A pod that is evicted is not left out as one that runs is.
func TestGroup_ShowsEvictedPods(t *testing.T) {
	running, evicted := gatedPod("r"), gatedPod("e")
	for _, p := range []*corev1.Pod{&running, &evicted} {
		p.Status.Phase, p.Spec.SchedulingGates = corev1.PodRunning, nil
	}
	e := eventOf("e", 1, "evicted from node gpu-1")
	e.Reason = "Preempted"
	groups := Group(Why([]corev1.Pod{running, evicted}, Evidence{Verdicts: []corev1.Event{e}}))
	if len(groups) != 1 || groups[0].Pod != "e" || groups[0].State != "it is evicted from node gpu-1" {
		t.Errorf("%+v", groups)
	}
}

// A controller that has created a pod since its last failure no longer fails.
func TestRefusals_EndWithAPodCreatedSince(t *testing.T) {
	failed := []corev1.Event{eventOf("rs", 10, "denied"), eventOf("rs", 5, "older")}
	p := gatedPod("a")
	p.OwnerReferences = []metav1.OwnerReference{{Name: "rs", UID: "rs", Controller: new(bool)}}
	*p.OwnerReferences[0].Controller = true
	for at, want := range map[int64]int{9: 1, 10: 1, 11: 0} {
		p.CreationTimestamp = metav1.NewTime(time.Unix(at, 0))
		got := Refusals([]corev1.Pod{p}, failed)
		if len(got) != want || want == 1 && (got[0].Object != "ReplicaSet/rs" || got[0].Message != "denied") {
			t.Errorf("a pod created at %d, and a failure at 10: %+v", at, got)
		}
	}
}
