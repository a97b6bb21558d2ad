// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/state/view"
)

const (
	// SyncPatience bounds for how long a new leader sends no pod why it waits, to read what
	// the leader before has sent. It places pods in that time.
	SyncPatience = 10 * time.Second
	// SyncAgain is when a pod is looked at again whose event was deferred.
	SyncAgain = time.Second
)

// BeginHandover defers the events of waiting pods until Handover knows those of the leader
// before.
func (n *Notifier) BeginHandover() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.syncing, n.earlier, n.deferredPlaced = true, nil, nil
}

// Handover reads the events of the leaders before. Without an answer they are sent once more.
func (n *Notifier) Handover(ctx context.Context, api rest.Interface) {
	ctx, cancel := context.WithTimeout(ctx, SyncPatience)
	defer cancel()
	events, more, err := eventlist.Read(ctx, api, "", OnPods, n.Clock.Now())
	if err == nil && more {
		err = errors.New("there are more than are read")
	}
	if err != nil {
		n.Log.Info("Cannot read all events of waiting pods, those of the others are sent again", "read", len(events), "err", err)
	}
	n.EndHandover(events)
}

// OnPods are the allocators' events on pods, but for those of slices that pods no longer have.
// These say nothing of what a pod waits for, and there is one for each pod that ends.
var OnPods = fields.AndSelectors(fields.SelectorFromSet(fields.Set{eventlist.FieldSource: Component, eventlist.FieldKind: "Pod"}),
	fields.OneTermNotEqualSelector(eventlist.FieldReason, ReasonReleased))

// EndHandover keeps the last message of each pod, if it was that it waits. That room is kept for
// it says so too, and not why.
func (n *Notifier) EndHandover(events []corev1.Event) {
	earlier, at := map[view.Subject]string{}, map[view.Subject]time.Time{}
	for i := range events {
		e := &events[i]
		pod := view.SubjectOf(e)
		if view.KeepsRoom(*e) {
			continue
		}
		if last, known := at[pod]; known && e.LastTimestamp.Time.Before(last) {
			continue
		}
		at[pod] = e.LastTimestamp.Time
		if delete(earlier, pod); e.Reason == ReasonWaiting || e.Reason == ReasonInvalid {
			earlier[pod] = e.Message
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.syncing, n.earlier = false, earlier
	for _, p := range n.deferredPlaced {
		if earlier[view.AsSubject(p.pod)] != "" {
			n.Emit(p.pod, corev1.EventTypeNormal, ReasonPlaced, p.where)
		}
	}
	n.deferredPlaced = nil
}

// placedPod is a pod and where it is, as text.
type placedPod struct {
	pod   *corev1.Pod
	where string
}

// Placed sends where the pod is, if there was an event that it waits, by this leader (waited)
// or by the one before. The placement is on the pod itself too. An event for each would be
// one write in five of all that a pod takes until it is bound.
func (n *Notifier) Placed(pod *corev1.Pod, where string, waited bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if waited || n.earlier[view.AsSubject(pod)] != "" {
		n.Emit(pod, corev1.EventTypeNormal, ReasonPlaced, where)
		return
	}
	n.Log.Info("Placed pod", "pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "where", where)
	if n.syncing {
		n.deferredPlaced = append(n.deferredPlaced, placedPod{pod, where})
	}
}

// sentEarlier reports whether the leader before has sent just that, but for the figures, and
// forgets it: what is sent from now on is known. The caller holds mu.
func (n *Notifier) sentEarlier(pod *corev1.Pod, text string) bool {
	before, sent := n.earlier[view.AsSubject(pod)]
	delete(n.earlier, view.AsSubject(pod))
	return sent && withoutFigures(before) == withoutFigures(eventlist.Cut(text, eventlist.MaxNote))
}

func withoutFigures(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == ',' {
			return -1
		}
		return r
	}, text)
}
