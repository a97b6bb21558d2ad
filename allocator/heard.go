// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"vernier.dev/vernier/allocator/podstate"
)

const (
	// hearingPatience bounds how long a new leader keeps from telling pods why they
	// wait, to find out what they were told before. It places them meanwhile.
	hearingPatience = 10 * time.Second
	// hearingAgain is when a pod that could not be told yet is looked at again.
	hearingAgain = time.Second
)

// listen has a new leader tell no pod that it waits before it has heard what the
// pods were told by the leader before.
func (a *Allocator) listen() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hearing, a.heard, a.untold = true, nil, nil
}

// hear asks for the events of the leaders before. Without an answer pods are told once
// more.
func (a *Allocator) hear(ctx context.Context, events typedcorev1.EventInterface) {
	ctx, cancel := context.WithTimeout(ctx, hearingPatience)
	defer cancel()
	list, err := events.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("source", eventComponent).String()})
	if err != nil {
		a.Log.Info("what waiting pods were told before is not known, they are told again", "error", err.Error())
		list = &corev1.EventList{}
	}
	a.takeHeard(list.Items)
}

// takeHeard keeps the last word on each pod, if it was that it waits.
func (a *Allocator) takeHeard(events []corev1.Event) {
	heard, at := map[types.UID]string{}, map[types.UID]time.Time{}
	for i := range events {
		e := &events[i]
		uid := e.InvolvedObject.UID
		if last, known := at[uid]; known && e.LastTimestamp.Time.Before(last) {
			continue
		}
		at[uid] = e.LastTimestamp.Time
		if delete(heard, uid); e.Reason == reasonWaiting || e.Reason == reasonInvalid {
			heard[uid] = e.Message
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hearing, a.heard = false, heard
	for _, p := range a.untold {
		if heard[p.pod.UID] != "" {
			a.tell(p.pod, corev1.EventTypeNormal, reasonPlaced, p.where)
		}
	}
	a.untold = nil
}

// placedPod is a pod and where it is, in words.
type placedPod struct {
	pod   *corev1.Pod
	where string
}

// tellPlaced tells the pod's owner where it is, if it was told that it waits, by this
// leader or the one before. Others find the place on the pod itself: an event for each
// would be one write in five of all that a pod takes until it is bound.
func (a *Allocator) tellPlaced(pod *corev1.Pod, where string, waited bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if waited || a.heard[pod.UID] != "" {
		a.tell(pod, corev1.EventTypeNormal, reasonPlaced, where)
		return
	}
	a.Log.Info("placed", "pod", podstate.KeyOf(pod), "uid", pod.UID, "where", where)
	if a.hearing {
		a.untold = append(a.untold, placedPod{pod, where})
	}
}

// wasHeard tells whether the leader before has told the pod's owner just that, but for
// the figures, and forgets it: what is told from now on is known. The caller holds mu.
func (a *Allocator) wasHeard(pod *corev1.Pod, text string) bool {
	before, heard := a.heard[pod.UID]
	delete(a.heard, pod.UID)
	return heard && withoutFigures(before) == withoutFigures(note(text))
}

func withoutFigures(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == ',' {
			return -1
		}
		return r
	}, text)
}
