// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// by makes the pod a controller's, of a name and a UID.
func by(name, uid string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: types.UID(uid), Controller: ptr.To(true)}}
	}
}

// member creates a pod of gang g now.
func (s *stage) member(name string, total int, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	edits = append(edits, inGang("g", total), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock.Now()) })
	return s.add(name, 60, 600, edits...)
}

// ends has a pod end now, its device be free, and some time pass.
func (s *stage) ends(name string, phase corev1.PodPhase) {
	s.t.Helper()
	s.bindNow(s.get(name))
	s.update(name, func(st *corev1.PodStatus) {
		st.Phase = phase
		st.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(s.clock.Now())}}}}
	})
	for _, n := range s.nodes {
		n.watch()
		n.report()
		s.work()
		n.watch()
		n.report()
	}
	s.pass(10 * time.Second)
}

// A gang of a name that an earlier one had, whose finished pods are still there, starts
// whole. A pod that takes the place of one that failed starts alone.
func TestGangRunsAgain(t *testing.T) {
	jobs := func(first, second string) [2]func(*corev1.Pod) {
		return [2]func(*corev1.Pod){by(first, first+"-1"), by(second, second+"-2")}
	}
	bare := func(*corev1.Pod) {}
	for name, tt := range map[string]struct {
		by   [2]func(*corev1.Pod)
		ends [3]corev1.PodPhase
		// alone tells whether one pod of the second run starts by itself.
		alone bool
	}{
		"a Job made again":                {jobs("j", "j"), [3]corev1.PodPhase{"Succeeded", "Succeeded", "Succeeded"}, false},
		"a Job made again that failed":    {jobs("j", "j"), [3]corev1.PodPhase{"Succeeded", "Succeeded", "Failed"}, false},
		"a Job made again while it runs":  {jobs("j", "j"), [3]corev1.PodPhase{"Succeeded", "Succeeded"}, false},
		"another Job":                     {jobs("j", "k"), [3]corev1.PodPhase{"Succeeded", "Succeeded", "Succeeded"}, false},
		"another Job after one failed":    {jobs("j", "k"), [3]corev1.PodPhase{"Succeeded", "Succeeded", "Failed"}, false},
		"another Job beside one":          {jobs("j", "k"), [3]corev1.PodPhase{"Succeeded", "Succeeded"}, true},
		"the Job's next pod":              {[2]func(*corev1.Pod){by("j", "1"), by("j", "1")}, [3]corev1.PodPhase{"Succeeded", "Succeeded", "Failed"}, true},
		"the Job's next, after all ended": {[2]func(*corev1.Pod){by("j", "1"), by("j", "1")}, [3]corev1.PodPhase{"Succeeded", "Succeeded", "Succeeded"}, true},
		"pods without a controller":       {[2]func(*corev1.Pod){bare, bare}, [3]corev1.PodPhase{"Succeeded", "Succeeded", "Succeeded"}, false},
		"in place of one that failed":     {[2]func(*corev1.Pod){bare, bare}, [3]corev1.PodPhase{"Succeeded", "Failed", "Succeeded"}, true},
		"beside one that runs":            {[2]func(*corev1.Pod){bare, bare}, [3]corev1.PodPhase{"Succeeded", "Succeeded"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 3)
			for i := range 3 {
				s.member(fmt.Sprintf("a%d", i), 3, tt.by[0])
			}
			s.work()
			if got := s.seats("a0", "a1", "a2"); strings.Count(got, ":") != 3 {
				t.Fatalf("the first run: placed %q; told %q", got, s.told())
			}
			s.pass(time.Minute)
			for i, phase := range tt.ends {
				if phase != "" {
					s.ends(fmt.Sprintf("a%d", i), phase)
				}
			}
			s.member("b0", 3, tt.by[1])
			s.work()
			if got := s.seats("b0") != ""; got != tt.alone {
				t.Errorf("one of the second run started alone: %v; told %q", got, s.told())
			}
			for i := 1; i < 3; i++ {
				s.member(fmt.Sprintf("b%d", i), 3, tt.by[1])
			}
			s.work()
			if got := s.seats("b0", "b1", "b2"); strings.Count(got, ":") != 3 {
				t.Errorf("the second run: placed %q; told %q", got, s.told())
			}
			// It counts for those of its own that are made again.
			s.vanish(s.get("b1"))
			s.vanish(s.get("b2"))
			s.pass(time.Minute)
			s.member("b1", 3, tt.by[1], func(p *corev1.Pod) { p.UID = "b1-again" })
			s.work()
			if got := s.seats("b1") != ""; got != tt.alone {
				t.Errorf("one of two that were made again started alone: %v", got)
			}
		})
	}
}

// What the pods of an earlier run say of the gang's size is of no matter to the later.
func TestGangRunsAgainLarger(t *testing.T) {
	s := newStage(t, 2)
	for i := range 2 {
		s.member(fmt.Sprintf("a%d", i), 2)
	}
	s.work()
	for i := range 2 {
		s.ends(fmt.Sprintf("a%d", i), corev1.PodSucceeded)
	}
	s.member("b0", 3)
	s.member("b1", 3)
	s.work()
	if got := s.seats("b0", "b1"); got != "" {
		t.Errorf("placed %q of three", got)
	}
	s.member("b2", 3)
	s.work()
	if got := s.seats("b0", "b1", "b2"); strings.Count(got, ":") != 3 {
		t.Errorf("placed %q; told %q", got, s.told())
	}
}

// A pod whose controller is made again before its turn has come is not the one that its gang
// lacks: it is deleted in a moment.
func TestPodOfAnEarlierRunIsNotTheOneMissing(t *testing.T) {
	s := newStage(t, 3)
	for i := range 3 {
		s.member(fmt.Sprintf("k%d", i), 3, by("k", "k"))
	}
	s.work()
	s.vanish(s.get("k2"))
	s.work()
	s.pass(time.Minute)
	s.member("old", 3, by("j", "old"))
	s.readAll()
	s.step() // the gang is looked at, and the pod is next
	s.clock.Step(time.Minute)
	s.member("new", 3, by("j", "new"))
	s.readAll()
	s.work()
	if got := s.seats("old", "new"); !strings.HasPrefix(got, "new:") {
		t.Errorf("placed %q, want the new one", got)
	}
	s.vanish(s.get("old"))
	s.work()
	s.checkMemory()
}

// Who is of the last run: those that were there at a time, by others if need be, and
// those of one controller.
func TestLastRun(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	pod := func(name string, created int64, edits ...func(*corev1.Pod)) *corev1.Pod {
		p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(1, 1)})
		p.UID, p.CreationTimestamp = types.UID(name), at(created)
		inGang("g", 2)(p)
		for _, e := range edits {
			e(p)
		}
		return p
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
		a := newStage(t, 1).allocator
		name, _ := group.Of(tt.pods[0])
		var got []string
		for _, p := range a.lastRun(name, tt.pods) {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", what, got, tt.want)
		}
	}
}
