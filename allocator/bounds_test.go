// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// What bounds the loops and the waits, within what it is for. The other tests take the
// constants as they are, so that it is here that one which was changed by mistake shows.
func TestBounds(t *testing.T) {
	const takeOver = 5 * time.Second
	for _, tt := range []struct {
		name            string
		is, least, most time.Duration
		why             string
	}{
		{"refusedGrace", bindwatch.RefusedGrace, 30 * time.Second, 30 * time.Second, "docs/architecture.md says so"},
		{"refusedHold", bindwatch.RefusedHold, 10 * time.Minute, 10 * time.Minute, "docs/architecture.md says so"},
		{"elsewherePatience", queue.ElsewherePatience, 5 * time.Second, 5 * time.Second, "docs/reference/events.md says so"},
		{"toldAgain", notify.RepeatAfter, time.Minute, time.Minute, "docs/reference/events.md says so"},
		{"toldRarely", notify.RepeatRarely, time.Hour, time.Hour, "docs/reference/events.md says so"},
		{"holdFor", binding.HoldFor, 4 * takeOver, time.Minute, "a new leader goes on with a gang; no other pod has the room until then"},
		{"prepareGrace", binding.PrepareGrace, 3 * time.Second, 10 * time.Second, "an instance takes a second or two; the kubelet tries again after 10 s"},
		{"preemptAgain", preemption.RetryAfter, 10 * time.Second, time.Minute, "many nodes are asked, for a pod that waits already"},
		{"firstRetry", queue.FirstRetry, 5 * time.Millisecond, 100 * time.Millisecond, "most errors pass at once; no server is asked without a pause"},
		{"lastRetry", queue.LastRetry, time.Second, takeOver, "a server that is down is left alone; nobody waits for long when it is back"},
		{"refusedDelay", queue.RefusedDelay, 20 * time.Millisecond, 500 * time.Millisecond, "changes come in crowds; a pod that fits now does not wait for a second"},
		{"hearingPatience", notify.SyncPatience, takeOver, 20 * time.Second, "a list of events takes seconds; a pod that waits is told why"},
		{"hearingAgain", notify.SyncAgain, 200 * time.Millisecond, notify.SyncPatience / 5, "a few looks while nothing is known"},
		{"servedPatience", servedPatience, time.Second, 10 * time.Second, "a list of PodGroups takes so long; a replica is ready without"},
		{"verdictsAge", verdictsAge, 2 * time.Second, 10 * time.Second, "one list for all readers; the page is asked for every few seconds"},
		{"retryPeriod", retryPeriod, 200 * time.Millisecond, renewDeadline / 4, "the Lease is no load; an attempt or two may fail"},
		{"renewDeadline", renewDeadline, leaseDuration / 2, leaseDuration - retryPeriod, "a leader steps down before another may lead"},
	} {
		if tt.is < tt.least || tt.is > tt.most {
			t.Errorf("%s is %v, want %v to %v: %s", tt.name, tt.is, tt.least, tt.most, tt.why)
		}
	}
	for _, tt := range []struct {
		name            string
		is, least, most int
		why             string
	}{
		{"maxAgain", queue.MaxAttempts, 3, 20, "a crowd of writers is got through; a server that always conflicts is not"},
		{"maxRound", queue.MaxRound, 32, 256, "a ledger's grants share a write; a pod waits for the others of its round"},
		{"maxWoken", queue.MaxMoves, queue.MaxRound / 4, queue.MaxRound - 1, "who waits has a turn; who comes is in the round as well"},
		{"maxOrders", scheduling.MaxOrders, 4, 20, "each order costs a decision for every member"},
		{"maxDomains", scheduling.MaxDomains, 4, 20, "each place costs some orders"},
		{"domainOrders", scheduling.DomainOrders, 2, 4, "one to go first, one to go before the pods of its affinity"},
		{"maxPreemptAsked", preemption.MaxNodes, 50, 500, "the scheduler's own least number of nodes is 100"},
		{"preemptShare", preemption.WorkerShare, 2, 10, "pods that need nobody's end are placed in most of the time; the others get their turn"},
		{"newsFreely", notify.NewsFreely, 4, 4, "docs/reference/events.md says so"},
		{"maxCauses", notify.MaxCauses, 2 * notify.NewsFreely, 64, "what is remembered of each waiting pod"},
		{"requests", requests, 8, 32, "more make a busy API server no faster"},
		{"maxNote", eventlist.MaxNote, 1024, 1024, "the API server refuses a longer one"},
	} {
		if tt.is < tt.least || tt.is > tt.most {
			t.Errorf("%s is %d, want %d to %d: %s", tt.name, tt.is, tt.least, tt.most, tt.why)
		}
	}
}

// pass moves the clock of the test's bubble on, and has everybody do what is due.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Against a server that refuses all writes the attempts come further and further apart,
// up to a bound; and all is placed when it takes writes again. A conflict is no error:
// some attempts follow at once.
func TestPausesAfterErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		answer error
		atOnce int
	}{
		"errors":    {apierrors.NewServerTimeout(schema.GroupResource{}, "any", 0), 0},
		"conflicts": {apierrors.NewConflict(schema.GroupResource{}, "n0", errors.New("always")), queue.MaxAttempts},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			s.allocator.end()
			s.time.WithTicker = clock.RealClock{}
			s.add("p", 10, 100)
			s.readAll()
			s.refuse = tt.answer
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go func() { _ = s.allocator.Lead(ctx) }()
				synctest.Wait()
				// What the test has done comes before what the leader does next, which takes the lock.
				pass := func(d time.Duration) {
					s.allocator.queue.Moves()
					pass(d)
				}
				// The leader writes what is there to read as soon as it has something to do.
				readAll := func() {
					for len(s.watch) > 0 {
						s.read()
						synctest.Wait()
					}
				}
				refused := func(pauses int) {
					pause := queue.FirstRetry
					for n := range pauses {
						if s.updates != 1+tt.atOnce {
							t.Fatalf("%d attempts after pause %d, want %d", s.updates, n, 1+tt.atOnce)
						}
						s.updates = 0
						pass(pause - time.Millisecond)
						if s.updates > 0 {
							t.Fatalf("pause %d did not last %v", n, pause)
						}
						pass(time.Millisecond)
						pause = min(2*pause, queue.LastRetry)
					}
				}
				refused(20)
				s.refuse = nil
				pass(queue.LastRetry)
				if s.patches != 1 {
					t.Fatalf("%d pods placed one pause after the server was back, want 1", s.patches)
				}
				// What went well once begins anew: with attempts at once, and a short pause.
				s.vanish(s.get("p"))
				readAll()
				pass(0)
				s.refuse, s.updates = tt.answer, 0
				s.add("p", 10, 100, func(p *corev1.Pod) { p.UID = "p-again" })
				readAll()
				pass(0)
				refused(3)
			})
		})
	}
}

// A new leader that does not get to know what pods were told before tells them itself,
// after a bounded time.
func TestHearingIsBounded(t *testing.T) {
	s := newStage(t, 1)
	s.add("large", 10, objects.DeviceMiB+1)
	s.allocator.notify.BeginHandover()
	s.work()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s.allocator.notify.Handover(t.Context(), objects.Events(func(ctx context.Context, _ string) ([]corev1.Event, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		if waited := time.Since(start); waited != notify.SyncPatience {
			t.Errorf("asked for %v, want %v", waited, notify.SyncPatience)
		}
	})
	s.says()
	s.pass(notify.SyncAgain)
	if sent := s.newEvents(); about(sent, notify.ReasonWaiting) != 1 {
		t.Errorf("events %q, want that it waits", sent)
	}
}

// A text that is longer than an event may be is cut, and is one still; however long the
// names are that are in it.
func TestNoteIsBounded(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 10, 100, func(p *corev1.Pod) {
		p.Annotations[v1alpha1.AnnotationGPUModel] = strings.Repeat("modèle,", 400)
	})
	s.work()
	sent := s.newEvents()
	if about(sent, notify.ReasonInvalid) != 1 || len(sent[0]) > 1024+len("Warning VernierInvalid ") {
		t.Errorf("events %q, want what is wrong, in 1024 bytes", sent)
	}
}

// The page does not show what another namespace says of a pod.
func TestHostileVerdicts(t *testing.T) {
	v := &verdicts{api: objects.Events(func(context.Context, string) ([]corev1.Event, error) {
		of := corev1.ObjectReference{Kind: "Pod", Namespace: "team", Name: "p", UID: "uid"}
		source := corev1.EventSource{Component: notify.Component}
		return []corev1.Event{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, InvolvedObject: of, Source: source, Message: strings.Repeat("m", 1<<20)},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant"}, InvolvedObject: of, Source: source},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, InvolvedObject: of, Source: corev1.EventSource{Component: "trainer"}},
		}, nil
	})}
	if events, err := v.read(t.Context()); err != nil || len(events) != 1 || len(events[0].Message) != eventlist.MaxNote {
		t.Errorf("%d events, error %v", len(events), err)
	}
}

// However many read the page, events are listed once in a while; and then again.
func TestVerdictsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		v := &verdicts{api: objects.Events(func(context.Context, string) ([]corev1.Event, error) {
			lists++
			return nil, nil
		})}
		for i, pause := range []time.Duration{0, 0, verdictsAge - time.Millisecond, time.Millisecond, 0} {
			pass(pause)
			if _, err := v.read(t.Context()); err != nil {
				t.Fatal(err)
			}
			if want := []int{1, 1, 1, 2, 2}[i]; lists != want {
				t.Errorf("%d lists at reading %d, want %d", lists, i, want)
			}
		}
	})
}
