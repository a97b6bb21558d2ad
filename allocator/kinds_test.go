// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A gang of as many kinds of members as there may be starts, and one of more is refused at once
// with the remedy. What each member has to itself, an index or a claim, makes no kind.
func TestHostileKinds(t *testing.T) {
	for name, tt := range map[string]struct {
		members int
		edit    func(*corev1.Pod, int)
		starts  bool
	}{
		"as many as may be": {scheduling.MaxKinds, func(p *corev1.Pod, i int) { unlike(p, i) }, true},
		"one more":          {scheduling.MaxKinds + 1, func(p *corev1.Pod, i int) { unlike(p, i) }, false},
		"by index": {scheduling.MaxKinds + 1, func(p *corev1.Pod, i int) {
			p.Labels["index"] = fmt.Sprint(i)
			p.Spec.Volumes = []corev1.Volume{{Name: fmt.Sprint(i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, true},
		"by index, that a selector reads": {scheduling.MaxKinds + 1, func(p *corev1.Pod, i int) {
			p.Labels["index"] = fmt.Sprint(i)
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1000, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
				MinDomains: new(int32(2)), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"index": "0"}}}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			s.allocator.binder.Requests = 1
			for i := range tt.members {
				s.add(fmt.Sprint("m", i), 1, 1, objects.InGang("g", tt.members), func(p *corev1.Pod) { tt.edit(p, i) })
			}
			s.work()
			if got := !podstate.Gated(s.get("m0")) && !podstate.Gated(s.get(fmt.Sprint("m", tt.members-1))); got != tt.starts {
				t.Errorf("started %v, want %v; events %q", got, tt.starts, s.newEvents())
			}
			if tt.starts {
				return
			}
			s.pass(queue.ElsewherePatience)
			want := fmt.Sprintf("Kueue's pod group ns/g: %d pods that start together are of %d kinds, at most %d are placed together", tt.members, tt.members, scheduling.MaxKinds)
			if got := s.newEvents(); len(got) != tt.members || !strings.Contains(got[0], "VernierInvalid") || !strings.Contains(got[0], want) || !strings.Contains(got[0], podrequest.AnnotationKueueTotal) {
				t.Errorf("events %q, want %q", got, want)
			}
		})
	}
}

// unlike gives the pod a share of its own.
func unlike(p *corev1.Pod, i int) {
	other := objects.Single("p", objects.Share(1, v1alpha1.MiB(1+i)))
	p.Annotations[v1alpha1.AnnotationShares], p.Spec.Containers = other.Annotations[v1alpha1.AnnotationShares], other.Spec.Containers
}

// A pod with more terms, or longer ones, than a pod with a share may have stays at the gate and
// says why, and holds up neither its gang nor anybody else.
func TestHostileTerms(t *testing.T) {
	many := func(p *corev1.Pod) {
		objects.Near("y")(p)
		terms := &p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		for len(*terms) <= v1alpha1.MaxSchedulingTerms {
			*terms = append(*terms, (*terms)[0])
		}
	}
	for name, edits := range map[string][]func(*corev1.Pod){"alone": {many}, "in a gang": {many, objects.InGang("g", 2)}} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			s.add("many", 1, 1, edits...)
			s.add("other", 1, 1, edits[1:]...)
			s.work()
			got := s.newEvents()
			if !podstate.Gated(s.get("many")) || len(got) != 1 || !strings.Contains(got[0], "VernierInvalid") || !strings.Contains(got[0], "a pod with a share may have 64: use fewer") {
				t.Errorf("events %q", got)
			}
			if podstate.Gated(s.get("other")) != (len(edits) > 1) {
				t.Error("the other pod: not as if it were alone")
			}
		})
	}
}
