// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
	edits = append(edits, objects.InGang("g", total), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock.Now()) })
	return s.add(name, 60, 600, edits...)
}

// ends has a pod end now, its device be free, and some time pass.
func (s *stage) ends(name string, phase corev1.PodPhase) {
	s.t.Helper()
	s.bindNow(name)
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
			s.expect("a0:* a1:* a2:*")
			s.pass(time.Minute)
			for i, phase := range tt.ends {
				if phase != "" {
					s.ends(fmt.Sprintf("a%d", i), phase)
				}
			}
			s.member("b0", 3, tt.by[1])
			s.work()
			if got := s.seats("b0") != ""; got != tt.alone {
				t.Errorf("one of the second run started alone: %v; events %q", got, s.newEvents())
			}
			for i := 1; i < 3; i++ {
				s.member(fmt.Sprintf("b%d", i), 3, tt.by[1])
			}
			s.work()
			s.expect("b0:* b1:* b2:*")
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
	s.expect("b0 b1")
	s.member("b2", 3)
	s.work()
	s.expect("b0:* b1:* b2:*")
}

// A pod whose controller is made again before its turn has come is not the one that its gang
// lacks: it is deleted in a moment.
func TestPodOfAnEarlierRunIsNotTheOneMissing(t *testing.T) {
	s := newStage(t, 3)
	for i := range 3 {
		s.member(fmt.Sprintf("k%d", i), 3, by("k", "k"))
	}
	s.work()
	s.forget("k2")
	s.pass(time.Minute)
	s.member("old", 3, by("j", "old"))
	s.readAll()
	s.step() // the gang is looked at, and the pod is next
	s.clock.Step(time.Minute)
	s.member("new", 3, by("j", "new"))
	s.readAll()
	s.work()
	s.expect("old new:*")
	s.forget("old")
	s.checkMemory()
}
