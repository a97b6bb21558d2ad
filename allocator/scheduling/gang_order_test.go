// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

func claimed(name string) corev1.Volume {
	return corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

// Pods that may go to different nodes are not alike, whatever they ask of devices.
func TestOrderIsNoMatterToPodsAlike(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Pod){
		"nothing":     func(*corev1.Pod) {},
		"tolerations": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
		"CPU": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		},
		"CPU of the pod": func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
		},
		"ports":                   func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} },
		"whom they go by":         objects.Near("x"),
		"who goes by them":        objects.Labelled("x"),
		"how they are spread out": objects.SpreadFrom,
		// Each may be on a disk of another node.
		"volumes": func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{claimed("m0")} },
		"claims": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: ptr.To("m0")}}
		},
		"room kept from them": func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](1000) },
	} {
		var order []Request
		for _, member := range []string{"m0", "m1"} {
			p := objects.Pod(member, map[string]v1alpha1.Share{"c": objects.Share(60, 600)})
			p.Spec.Volumes = []corev1.Volume{claimed("shared")}
			order = append(order, Request{Pod: p})
		}
		if name == "who goes by them" {
			objects.Near("x")(order[0].Pod)
			objects.Near("x")(order[1].Pod)
		}
		edit(order[0].Pod)
		if got, want := orderIsIrrelevant(order, 1, func(p, q *corev1.Pod) bool { return true }), name == "nothing"; got != want {
			t.Errorf("different in %s: order is no matter: %v", name, got)
		}
	}
}

// However many places there are for a gang that none takes, few are tried.
func TestDomainsAreBounded(t *testing.T) {
	s := newScheduler(t, 2*MaxDomains)
	var set []Request
	for i := range 2 {
		set = append(set, s.request(fmt.Sprintf("m%d", i), 60, 600, objects.Labelled("x"), objects.Near("x")))
	}
	if got := len(s.domains(set, 2)); got != MaxDomains {
		t.Errorf("%d domains of %d nodes, want %d", got, 2*MaxDomains, MaxDomains)
	}
	// Where the devices are not there, none is.
	for i := range 2 * MaxDomains {
		s.use(fmt.Sprintf("n%d", i), 0, 50)
	}
	if got := len(s.domains(set, 2)); got != 0 {
		t.Errorf("%d domains, and no node has room for two", got)
	}
	if got := len(s.domains(set, 1)); got != MaxDomains {
		t.Errorf("%d domains for one of two, want %d", got, MaxDomains)
	}
	// Full ones aren't tried either where one that goes by nobody is enough.
	for i := range MaxDomains {
		s.use(fmt.Sprintf("n%d", i), 1, 50)
	}
	free := []Request{s.request("free", 10, 100)}
	got := s.domains(append(free, set...), 1)
	for _, d := range got {
		for node := range d.nodes {
			if i, _ := strconv.Atoi(node[1:]); i < MaxDomains {
				t.Errorf("node %s is full", node)
			}
		}
	}
	if len(got) != MaxDomains {
		t.Errorf("%d domains with room, want %d", len(got), MaxDomains)
	}
	if got := s.domains([]Request{s.request("alone", 10, 100, objects.Labelled("x"))}, 1); got != nil {
		t.Errorf("%v for a pod that goes by nobody", got)
	}
}

// Who goes by whom is worked out by kind: hundreds of members with affinity and an index each
// are of two.
func TestTurnIsWorkedOutByKind(t *testing.T) {
	var gang []Request
	for i := range 600 {
		p := objects.Pod(fmt.Sprint("p", i), map[string]v1alpha1.Share{"c": objects.Share(1, 1)})
		p.UID = types.UID(p.Name)
		p.Labels = map[string]string{"index": fmt.Sprint(i), "app": []string{"leader", "worker"}[min(i, 1)]}
		if i > 0 {
			objects.Near("leader")(p)
		}
		gang = append(gang, Request{Pod: p})
	}
	if n := len(kindsOf(gang).example); n != 2 {
		t.Errorf("%d kinds, want 2", n)
	}
	slices.Reverse(gang)
	if turn, circle := newScheduler(t, 1).inTurn(gang); circle || turn[0].Pod.Name != "p0" || len(turn) != len(gang) || turn[1].Pod.Name != "p599" {
		t.Errorf("%d in turn, the first is %s", len(turn), turn[0].Pod.Name)
	}
}
