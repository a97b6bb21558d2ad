// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/test/objects"
)

// crowd is an allocator in a cluster of one node that is full, and pods that wait there.
type crowd struct {
	*Allocator
	t   *testing.T
	api *answering
	q   queue.Work
}

func newCrowd(t *testing.T) *crowd {
	api := &answering{pods: map[types.NamespacedName]*corev1.Pod{}}
	c := &crowd{benchAllocator(t, api), t, api, workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[queue.Item]())}
	c.binder.Requests = 1 // the API server answers one at a time
	t.Cleanup(c.q.ShutDown)
	c.begin(context.Background(), c.q)
	c.SetNode(nil, objects.Node("n0"))
	l := objects.ReadyLedger("n0")
	l.ResourceVersion = api.next()
	c.SetLedger(l)
	return c
}

// come has pods come that ask for a device each.
func (c *crowd) come(name string, n int, edits ...func(*corev1.Pod)) {
	for i := range n {
		pod := objects.Single(fmt.Sprint(name, i), objects.Share(100, 100))
		pod.UID, pod.ResourceVersion = types.UID(pod.Name), c.api.next()
		for _, e := range edits {
			e(pod)
		}
		c.api.pods[podstate.KeyOf(pod)] = pod
		c.SetPod(pod)
	}
}

// work has everything done that is due. It counts the decisions, and the bytes that were
// taken from the heap for them.
func (c *crowd) work() (decisions, bytes int) {
	const metric = "decision_duration_seconds"
	decisions = -int(measured(c.t, metric))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for c.q.Len() > 0 {
		c.step(c.t.Context())
		sent := c.api.sent
		c.api.sent = nil
		for _, tell := range sent {
			tell(c.Allocator)
		}
	}
	runtime.ReadMemStats(&after)
	return decisions + int(measured(c.t, metric)), int(after.TotalAlloc - before.TotalAlloc)
}

// Of those that wait each is looked at once when they come and once when they are woken,
// and a gang as one, however many there are of it. Pods of a group of which enough run are
// like any other: what they take does not grow with the group.
func TestCrowdIsLookedAtOnce(t *testing.T) {
	const n = 500
	var alone [2]int
	for _, kind := range []struct {
		name  string
		total int // of the group; 0 is none
		looks int
	}{{"alone", 0, n}, {"enough run", 2, n}, {"together", n, 1}} {
		c := newCrowd(t)
		var edits []func(*corev1.Pod)
		if kind.total > 0 {
			edits = append(edits, objects.InGang("g", kind.total))
		}
		if kind.total > 2 {
			c.come("first", 2)
		} else {
			c.come("first", 2, edits...)
		}
		c.work()
		c.come("p", n, edits...)
		for i, what := range []string{"come", "are woken"} {
			decisions, bytes := c.work()
			if decisions != kind.looks {
				t.Errorf("%s: %d decisions when %d pods %s, want %d", kind.name, decisions, n, what, kind.looks)
			}
			if kind.total == 0 {
				alone[i] = bytes
			} else if bytes > 2*alone[i] {
				t.Errorf("%s: %d bytes when %d pods %s, want at most twice the %d of as many alone", kind.name, bytes, n, what, alone[i])
			}
			c.queue.MoveToActive(cache.OnAll)
		}
	}
}

// Members that are looked at one by one are looked at together once they have to start
// together again, and one by one when there are enough after that.
func TestGangPartsAndUnites(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"a0", "a1", "b0"} {
		s.add(name, 100, 100, objects.InGang("g", 2))
		s.work()
	}
	s.expect("a0:n0 a1:n0 b0")
	s.forget("a0", "a1")
	s.expect("b0")
	s.add("other", 100, 100)
	s.add("b1", 100, 100, objects.InGang("g", 2))
	s.work()
	s.expect("b0 b1 other:n0")
	s.add("ungated", 1, 1, objects.InGang("g", 2), func(p *corev1.Pod) {
		p.Annotations = map[string]string{}
		p.Spec.SchedulingGates = nil
		objects.InGang("g", 2)(p)
	})
	s.work()
	if got := s.seats("b0", "b1"); strings.Count(got, ":") != 1 {
		t.Errorf("beside one that needs no device, on one device: %q", got)
	}
}

// A pod of an earlier run is not left behind when those of the later one, of which enough
// ran, have gone.
func TestEarlierRunAfterTheLater(t *testing.T) {
	s := newStage(t, 1)
	s.pass(time.Minute)
	for _, name := range []string{"b0", "b1", "b2"} {
		s.member(name, 1, by("j", "2"))
		s.work()
	}
	s.add("a0", 60, 600, by("j", "1"), objects.InGang("g", 1))
	s.work()
	s.expect("b0:n0 b1:n0 b2 a0")
	for _, name := range []string{"b2", "b1", "b0"} {
		s.forget(name)
	}
	s.expect("a0:n0")
}

// A member that waits since one that runs says another size goes on once that is mended,
// also where it was looked at by itself before.
func TestGangIsMendedOnOneThatRuns(t *testing.T) {
	s := newStage(t, 1)
	s.add("a", 60, 600, objects.InGang("g", 1))
	s.add("other", 60, 600)
	s.work()
	s.add("b", 60, 600, objects.InGang("g", 1))
	s.work()
	s.edit("a", objects.InGang("g", 2))
	s.forget("other")
	s.expect("b")
	s.edit("a", objects.InGang("g", 1))
	s.expect("b:n0")
}

// A pod goes on when those that ran before it, and said another size, are seen to have
// ended: the kubelet may say so late.
func TestEndOfEarlierRunIsSeenLate(t *testing.T) {
	s := newStage(t, 2)
	s.pass(time.Minute)
	for _, name := range []string{"a0", "a1"} {
		s.member(name, 2)
	}
	s.work()
	ended := s.clock.Now()
	s.pass(time.Minute)
	s.member("b", 1)
	s.work()
	s.pass(queue.ElsewherePatience)
	s.expect("a0:* a1:* b")
	for _, name := range []string{"a0", "a1"} {
		s.bindNow(name)
		s.update(name, func(st *corev1.PodStatus) {
			st.Phase = corev1.PodSucceeded
			st.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(ended)}}}}
		})
	}
	s.expect("b:*")
}

// A pod of an earlier run is of the last one when the pods of the later are being deleted,
// or have lost their controller, as with kubectl delete --cascade=orphan.
func TestLaterRunEnds(t *testing.T) {
	for name, end := range map[string]func(s *stage, name string){
		"deleted": func(s *stage, name string) {
			s.delete(name)
			s.work()
		},
		"orphaned": func(s *stage, name string) {
			s.edit(name, func(p *corev1.Pod) { p.OwnerReferences = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			s.pass(time.Minute)
			kept := func(p *corev1.Pod) { p.Finalizers = []string{"example.com/kept"} }
			s.member("b0", 1, by("j", "2"), kept)
			s.member("b1", 1, by("j", "2"), kept, onDevice("GPU-n9-9"))
			s.work()
			s.add("a", 60, 600, by("j", "1"), objects.InGang("g", 1))
			s.work()
			s.expect("b0:n0 b1 a")
			s.bindNow("b0")
			end(s, "b1")
			end(s, "b0")
			s.expect("a:n0")
		})
	}
}
