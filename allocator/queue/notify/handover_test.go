// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/test/objects"
)

func newNotifier(c client.Client) (*Notifier, *testclock.FakeClock, *record.FakeRecorder) {
	clock, events := testclock.NewFakeClock(time.Unix(1000, 0)), record.NewFakeRecorder(100)
	return &Notifier{Events: events, Client: c, Clock: clock, Log: logr.Discard()}, clock, events
}

func named(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

func sent(events *record.FakeRecorder) (all []string) {
	for len(events.Events) > 0 {
		all = append(all, <-events.Events)
	}
	return all
}

// A new leader sends no reason that the one before has sent, but for the figures; and that a
// pod is placed only where its owner was told that it waits.
func TestHandover(t *testing.T) {
	n, _, events := newNotifier(nil)
	n.BeginHandover()
	var notices Notices
	if in, later := n.Waiting(named("same"), &notices, ReasonWaiting, Why{Key: "short", Text: "needs 5"}, time.Time{}); !later || in != SyncAgain {
		t.Errorf("later %v, in %v", later, in)
	}
	n.Placed(named("waited"), "on n0", false)
	n.Placed(named("new"), "on n0", false)
	if got := sent(events); len(got) != 0 {
		t.Errorf("sent before the handover is over: %q", got)
	}
	earlier := func(pod, reason, text string, at int64) corev1.Event {
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod, UID: types.UID(pod)},
			Source: corev1.EventSource{Component: Component}, Reason: reason, Message: text, LastTimestamp: metav1.Unix(at, 0)}
	}
	n.EndHandover([]corev1.Event{earlier("same", ReasonWaiting, "needs 7", 2), earlier("same", ReasonWaiting, "other", 1),
		earlier("waited", ReasonWaiting, "needs 7", 1), earlier("waited", ReasonReserved, "reserved on n0", 2), earlier("same", ReasonPreempting, "ends pods", 3),
		earlier("new", ReasonPlaced, "on n1", 3), earlier("new", ReasonWaiting, "needs 7", 2)})
	if got := sent(events); len(got) != 1 || !strings.Contains(got[0], ReasonPlaced) {
		t.Errorf("sent %q, want that waited is placed", got)
	}
	n.Waiting(named("same"), &notices, ReasonWaiting, Why{Key: "short", Text: "needs 5"}, time.Time{})
	if got := sent(events); len(got) != 0 || !notices.Sent() {
		t.Errorf("sent again: %q", got)
	}
	n.Waiting(named("same"), &notices, ReasonWaiting, Why{Key: "refused", Text: "no CPU"}, time.Time{})
	if got := sent(events); len(got) != 1 {
		t.Errorf("another reason: sent %q", got)
	}
}

// A tenant's events, as if by the allocator, about pods of another namespace have no part in a
// handover: not of another's UID, and not of a time to come.
func TestHostileHandover(t *testing.T) {
	n, clock, events := newNotifier(nil)
	n.BeginHandover()
	forged := func(namespace, uid, reason string) corev1.Event {
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: uid, UID: types.UID(uid)},
			Source: corev1.EventSource{Component: Component}, Reason: reason, Message: "needs 5", LastTimestamp: metav1.NewTime(clock.Now().AddDate(10, 0, 0))}
	}
	n.Placed(named("placed"), "on n0", false)
	n.Handover(t.Context(), objects.Events(func(context.Context, string) ([]corev1.Event, error) {
		return []corev1.Event{forged("tenant", "waits", ReasonWaiting), forged("ns", "waits", ReasonWaiting), forged("tenant", "placed", ReasonWaiting)}, nil
	}))
	if got := sent(events); len(got) != 0 {
		t.Errorf("sent by what another namespace says: %q", got)
	}
	var notices Notices
	n.Waiting(named("waits"), &notices, ReasonWaiting, Why{Key: "short", Text: "needs 5"}, time.Time{})
	if got := sent(events); len(got) != 1 {
		t.Errorf("sent %q, want why it waits, whatever another namespace says", got)
	}
}

// Two leaders send the event of one change once. An event that the API server refuses does not
// stop the change; one without an answer does.
func TestOnce(t *testing.T) {
	var answer error
	creations := 0
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(s).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
			creations++
			if answer != nil {
				return answer
			}
			return c.Create(ctx, obj, o...)
		}})
	for range 2 {
		n, _, _ := newNotifier(c)
		if err := n.Once(t.Context(), named("p"), corev1.EventTypeNormal, ReasonMoved, "moved", "first"); err != nil {
			t.Fatal(err)
		}
	}
	var list corev1.EventList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 1 || creations != 2 {
		t.Errorf("%d events, %v", len(list.Items), err)
	}
	n, _, _ := newNotifier(c)
	for _, answer = range []error{apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no")), apierrors.NewInternalError(errors.New("no leader"))} {
		if err := n.Once(t.Context(), named("p"), corev1.EventTypeNormal, ReasonMoved, "moved", "second"); err != nil {
			t.Errorf("an event that is refused stops the change: %v", err)
		}
	}
	answer = errors.New("connection refused")
	if err := n.Once(t.Context(), named("p"), corev1.EventTypeNormal, ReasonMoved, "moved", "third"); err == nil {
		t.Error("without an answer the change goes on, and its event may be lost")
	}
}
