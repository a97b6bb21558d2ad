// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/api/podrequest"
)

// by makes the pod a controller's, of a name and a UID.
func by(name, uid string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID(uid), Controller: ptr.To(true)}}
	}
}

// Pods that existed at the same time, directly or through others, are of one incarnation; so are
// pods of one controller.
func TestCurrentIncarnation(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	pod := func(name string, created int64, edits ...func(*corev1.Pod)) *corev1.Pod {
		return member(name, 2, append([]func(*corev1.Pod){func(p *corev1.Pod) { p.CreationTimestamp = at(created) }}, edits...)...)
	}
	done := func(phase corev1.PodPhase, ended int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = phase
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(ended - 1)}}},
				{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(ended)}}}}
		}
	}
	deleted := func(asked int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(at(asked+30)), ptr.To(int64(30))
		}
	}
	// lost is a pod of a node that was lost, which says that a container runs.
	lost := func(init, given int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Conditions = corev1.PodFailed, []corev1.PodCondition{{LastTransitionTime: at(given)}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(init)}}}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}
	}
	const succeeded, failed = corev1.PodSucceeded, corev1.PodFailed
	for what, tt := range map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"all there": {[]*corev1.Pod{pod("a", 0), pod("b", 5)}, "a b"},
		"one ended before the next came, which is of another Job": {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("b", 5, by("k", "k"))}, "b"},
		"in the same second":                                  {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 5)), pod("b", 5, by("k", "k"))}, "a b"},
		"by one that failed beside the first":                 {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("f", 2, by("k", "k"), done(failed, 5)), pod("b", 6, by("k", "k"))}, "a f b"},
		"by one that is being deleted beside the first":       {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("d", 2, by("k", "k"), deleted(6)), pod("b", 8, by("k", "k"))}, "a d b"},
		"by one that was lost with its node beside the first": {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("f", 2, by("k", "k"), lost(3, 6)), pod("b", 6, by("l", "l"))}, "a f b"},
		"deleted after it had ended":                          {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("d", 0, by("j", "j"), done(succeeded, 4), deleted(9)), pod("b", 6, by("k", "k"))}, "b"},
		"after one was to be deleted":                         {[]*corev1.Pod{pod("d", 0, by("j", "j"), deleted(4)), pod("b", 5, by("k", "k"))}, "b"},
		"one that failed before it ran":                       {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("f", 3, by("j", "j"), func(p *corev1.Pod) { p.Status.Phase = failed }), pod("b", 9, by("k", "k"))}, "b"},
		"one that failed before it ran, later": {[]*corev1.Pod{pod("f", 3, by("j", "j"), func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Conditions = failed, []corev1.PodCondition{{LastTransitionTime: at(9)}}
		}), pod("b", 9, by("k", "k"))}, "f b"},
		"one that does not say when it ended":                               {[]*corev1.Pod{pod("a", 0, by("j", "j"), func(p *corev1.Pod) { p.Status.Phase = succeeded }), pod("b", 5, by("k", "k"))}, "a b"},
		"three runs":                                                        {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("b", 5, by("k", "k"), done(succeeded, 8)), pod("c", 9, by("l", "l"))}, "c"},
		"a Job that goes on while another ends":                             {[]*corev1.Pod{pod("a", 0, by("j", "j")), pod("b", 1, by("k", "k"), done(succeeded, 3)), pod("c", 9, by("l", "l"))}, "a b c"},
		"a controller made again":                                           {[]*corev1.Pod{pod("a", 0, by("j", "old")), pod("b", 5, by("j", "new"))}, "b"},
		"controllers of one name of two API groups":                         {[]*corev1.Pod{pod("a", 0, by("j", "1")), pod("b", 5, by("j", "2"), func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" })}, "a b"},
		"made again in another version of its API":                          {[]*corev1.Pod{pod("a", 0, by("j", "1")), pod("b", 5, by("j", "2"), func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "batch/v2" })}, "b"},
		"made again while its pods are deleted":                             {[]*corev1.Pod{pod("a", 0, by("j", "old")), pod("b", 5, by("j", "new"), deleted(6))}, "a b"},
		"two of one name in one second, of which nobody knows which is new": {[]*corev1.Pod{pod("a", 5, by("j", "old")), pod("b", 5, by("j", "new"))}, "a b"},
		"with no controller, less than the gang has succeeded":              {[]*corev1.Pod{pod("a", 0, done(succeeded, 4)), pod("f", 0, done(failed, 4)), pod("b", 9)}, "a f b"},
		"with no controller, all of the gang has succeeded":                 {[]*corev1.Pod{pod("a", 0, done(succeeded, 4)), pod("f", 0, done(succeeded, 4)), pod("b", 9)}, "b"},
		"with none after a Job":                                             {[]*corev1.Pod{pod("a", 0, by("j", "j"), done(succeeded, 4)), pod("b", 9)}, "b"},
	} {
		gs := New(&podgroup.Sizes{})
		name, _ := podrequest.GroupOf(tt.pods[0])
		var got []string
		for _, p := range gs.currentIncarnation(name, tt.pods) {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", what, got, tt.want)
		}
	}
}
