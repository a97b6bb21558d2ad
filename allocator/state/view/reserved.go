// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/cause"
)

// Reasons of the events by which the allocator that leads says what it keeps for a pod, and who
// leaves or has left. Others know it by these alone.
const (
	ReasonPreempting = "VernierPreempting"
	ReasonReserved   = "VernierReserved"
	ReasonUnreserved = "VernierUnreserved"
	ReasonPreempted  = "Preempted"
	// ReasonReleased is of slices that a pod no longer has.
	ReasonReleased = "VernierReleased"
)

// Reserved is the room on GPUs that is kept for a pod: where, who has to leave, and until when.
type Reserved struct {
	Reason
	// Until is when the room was to be free; nil where nobody knew.
	Until *metav1.Time `json:"until,omitempty"`
}

// KeepsRoom reports whether an event is of room that is kept for a pod, or no longer is.
func KeepsRoom(e corev1.Event) bool {
	return e.Reason == ReasonPreempting || e.Reason == ReasonReserved || e.Reason == ReasonUnreserved
}

// ReservedOf is an event as preemption.Describe words it. Its time counts from the event on, and
// is not in the message.
func ReservedOf(e *corev1.Event) *Reserved {
	r := &Reserved{Reason: *ReasonOf(e)}
	if at := strings.LastIndex(r.Message, ", about "); at >= 0 {
		if in, err := time.ParseDuration(r.Message[at+len(", about "):]); err == nil {
			r.Message, r.Until = r.Message[:at], &metav1.Time{Time: r.Seen.Add(in)}
		}
	}
	return r
}

// At is the message as it is true now.
func (r *Reserved) At(now time.Time) string {
	if r.Until == nil {
		return r.Message
	}
	in := r.Until.Sub(now).Round(time.Second)
	if in < 0 {
		return fmt.Sprintf("%s, which was to be %v ago", r.Message, -in)
	}
	return fmt.Sprintf("%s, about %v from now", r.Message, in)
}

// GPUOf is a GPU by its node and its index there.
type GPUOf struct {
	Node  string
	Index int32
}

// GPUs are the ones that the message names: of a large gang not all.
func (r *Reserved) GPUs() []GPUOf {
	_, text, _ := strings.Cut(r.Message, "reserved on ")
	text, _, _ = strings.Cut(text, ", w") // who leaves
	var all []GPUOf
	var of GPUOf
	for _, part := range strings.Split(text, ", ") {
		if rest, first := strings.CutPrefix(part, "node "); first {
			of.Node, part, _ = strings.Cut(rest, " ")
		}
		if n, err := fmt.Sscanf(part, "GPU %d", &of.Index); n == 1 && err == nil {
			all = append(all, of)
		}
	}
	return all
}

// Said is what the allocator's events say of pods.
type Said struct {
	// reasons are the last event of each, but for those of the room that is kept for it.
	reasons, rooms map[Subject]corev1.Event
}

// SaidIn are the last of the allocator's events.
func SaidIn(events []corev1.Event) Said {
	var reasons, rooms []corev1.Event
	for i := range events {
		if KeepsRoom(events[i]) {
			rooms = append(rooms, events[i])
		} else {
			reasons = append(reasons, events[i])
		}
	}
	return Said{LastEvents(reasons), LastEvents(rooms)}
}

// Reason is the last that was said of why the pod waits; nil for nothing.
func (s Said) Reason(p *corev1.Pod) *Reason {
	if e, ok := s.reasons[AsSubject(p)]; ok {
		return ReasonOf(&e)
	}
	return nil
}

// Cause is the last event's word for why the pod waits; empty where it has none of ours.
func (s Said) Cause(p *corev1.Pod) cause.Cause {
	if of := cause.Cause(s.reasons[AsSubject(p)].Annotations[cause.Annotation]); of.Known() {
		return of
	}
	return ""
}

// Reserved is the room that is kept for a pod, nil if there is none. Of one that does not wait, or
// that waits for other gates, the leader has dropped it without a word.
func (s Said) Reserved(p *corev1.Pod) *Reserved {
	e, ok := s.rooms[AsSubject(p)]
	if !ok || e.Reason == ReasonUnreserved || !podstate.Ready(p) {
		return nil
	}
	return ReservedOf(&e)
}

// Text is all that was said of a pod.
func (s Said) Text(p *corev1.Pod) string {
	return s.reasons[AsSubject(p)].Message + "\n" + s.rooms[AsSubject(p)].Message
}
