// SPDX-License-Identifier: Apache-2.0

// Package notify owns the events on pods: their reasons and texts, how often a reason is
// repeated, and what the leader before has sent.
//
// It decides nothing and reads no cache. A Notifier may be used concurrently.
package notify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
)

// Component is the source of our events.
const Component = "vernier-allocator"

// Reasons of the events on pods.
const (
	ReasonPlaced     = "VernierPlaced"
	ReasonWaiting    = "VernierWaiting"
	ReasonInvalid    = "VernierInvalid"
	ReasonPinRefused = "VernierPinRefused"
	ReasonIgnored    = "VernierNoScheduler"
	ReasonMoved      = "VernierMoved"
	ReasonUnhealthy  = "VernierUnhealthy"
	ReasonRecovered  = "VernierRecovered"
	ReasonAgentAway  = "VernierAgentAway"
	ReasonIdle       = "GPUIdle"
	// ReasonDefragmented is of a pod that is moved for another.
	ReasonDefragmented = "VernierDefragmented"
	// ReasonWriteRefused is of pods, and of ledgers.
	ReasonWriteRefused = "VernierWriteRefused"
	ReasonPreempting   = view.ReasonPreempting
	ReasonReserved     = view.ReasonReserved
	ReasonUnreserved   = view.ReasonUnreserved
	ReasonPreempted    = view.ReasonPreempted
	ReasonReleased     = view.ReasonReleased
	// ReasonResized and ReasonInfeasible are how a resize ended.
	ReasonResized    = "VernierResized"
	ReasonInfeasible = "VernierResizeInfeasible"
	// ReasonIdleEvicted is of a pod whose idle slice is gone, or of no use to it.
	ReasonIdleEvicted = "VernierIdleEvicted"
	// ReasonBudgetsUnread is of a pod of a namespace with too many PodDisruptionBudgets.
	ReasonBudgetsUnread = "VernierBudgetsUnread"
)

// Why is why a pod waits.
type Why struct {
	Cause cause.Cause
	// Key is the same for the same thing with other figures, and Text the sentence with them.
	Key, Text string
}

// Notifier sends events.
type Notifier struct {
	Events record.EventRecorder
	Client client.Client
	Clock  clock.PassiveClock
	Log    logr.Logger

	mu sync.Mutex
	// syncing is true until the events of the leader before are known, and earlier are the
	// messages that they have for waiting pods.
	syncing bool
	earlier map[view.Subject]string
	// deferredPlaced are pods that were placed while syncing.
	deferredPlaced []placedPod
	// eventsFrom is when the API server is asked again to take an event of Once.
	eventsFrom time.Time
}

// Emit sends an event on the pod, and logs it: the log is kept for longer.
func (n *Notifier) Emit(pod *corev1.Pod, kind, reason, text string) {
	n.emit(pod, kind, reason, text, "")
}

// emit is Emit for an event of a cause, which is the event's annotation.
func (n *Notifier) emit(pod *corev1.Pod, kind, reason, text string, of cause.Cause) {
	n.Log.Info("Sent event", "pod", podstate.KeyOf(pod), "podUID", pod.UID, "reason", reason, "note", text)
	var annotations map[string]string
	if of != "" {
		annotations = map[string]string{cause.Annotation: string(of)}
	}
	n.Events.AnnotatedEventf(pod, annotations, kind, reason, "%s", eventlist.Cut(text, eventlist.MaxNote))
}

// EmitOn is Emit for a ledger.
func (n *Notifier) EmitOn(ledger *v1alpha1.SliceLedger, kind, reason, text string) {
	n.Log.Info("Sent event", "node", ledger.Name, "reason", reason, "note", text)
	n.Events.Event(ledger, kind, reason, eventlist.Cut(text, eventlist.MaxNote))
}

// Waiting sends why the pod waits, unless that was sent, once it may be repeated and not
// before notBefore. Otherwise it returns in how long that will be. sent is what the pod was
// sent so far.
func (n *Notifier) Waiting(pod *corev1.Pod, sent *Notices, reason string, why Why, notBefore time.Time) (in time.Duration, later bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	due, news := sent.due(why.Key, why.Text)
	if !news {
		return 0, false
	}
	if n.syncing {
		return SyncAgain, true
	}
	if due.Before(notBefore) {
		due = notBefore
	}
	now := n.Clock.Now()
	if now.Before(due) {
		return due.Sub(now), true
	}
	sent.enter(why.Key, why.Text, now)
	if !n.sentEarlier(pod, why.Text) {
		n.emit(pod, corev1.EventTypeWarning, reason, why.Text, why.Cause)
	}
	return 0, false
}

// Invalid sends why the pod can never be placed as it is. Another text is another mistake:
// after one was mended the next is sent at once.
func (n *Notifier) Invalid(pod *corev1.Pod, sent *Notices, why Why) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last, known := sent.by[why.Key]; known && sent.last == why.Key && last.text == why.Text {
		return
	}
	sent.enter(why.Key, why.Text, n.Clock.Now())
	// These pods are few: they do not wait for the handover.
	if !n.sentEarlier(pod, why.Text) {
		n.emit(pod, corev1.EventTypeWarning, ReasonInvalid, why.Text, why.Cause)
	}
}

// eventPatience bounds the wait for one event to be written. No pod is placed in that time,
// and clusters may keep their events in an etcd of its own, which can be away alone.
const eventPatience = 2 * time.Second

// EventPause is for how long none is written after one that was not taken in time.
const EventPause = time.Minute

// Once is Emit for a change that is written after the event. It is sent once, also if the
// leader dies in between and the next one repeats it. An event that the API server does not
// take, or not in time, is only logged: the change is more important.
func (n *Notifier) Once(ctx context.Context, pod *corev1.Pod, kind, reason, text, change string) error {
	now := metav1.NewTime(n.Clock.Now())
	log := n.Log.WithValues("pod", podstate.KeyOf(pod), "podUID", pod.UID, "reason", reason, "note", text)
	if n.paused(now.Time) {
		log.Info("Event not sent, since the API server takes no events in time")
		return nil
	}
	inTime, cancel := context.WithTimeout(ctx, eventPatience)
	defer cancel()
	err := n.Client.Create(inTime, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: eventName(pod, change)},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Type: kind, Reason: reason, Message: eventlist.Cut(text, eventlist.MaxNote), FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: Component}, ReportingController: Component,
	})
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err == nil:
		log.Info("Sent event")
	case ctx.Err() == nil && inTime.Err() != nil:
		n.pause()
		log.Error(err, "Event not sent")
	case ctx.Err() == nil && errors.As(err, &answer):
		log.Error(err, "Event not sent")
	default:
		return fmt.Errorf("sending event %s of pod %s: %w", reason, podstate.KeyOf(pod), err)
	}
	return nil
}

func (n *Notifier) paused(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return now.Before(n.eventsFrom)
}

func (n *Notifier) pause() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.eventsFrom = n.Clock.Now().Add(EventPause)
}

// eventName is the name of the event about a change of the pod.
func eventName(pod *corev1.Pod, change string) string {
	sum := fmt.Sprintf(".%x", sha256.Sum256([]byte(string(pod.UID)+change)))[:17]
	name := pod.Name
	if most := validation.DNS1123SubdomainMaxLength - len(sum); len(name) > most {
		name = strings.TrimRight(name[:most], ".-")
	}
	return name + sum
}

// Released sends each pod of the ledger that it had these slices until now. It is for accounts of
// who had which GPU: nothing here reads it.
func (n *Notifier) Released(left *v1alpha1.SliceLedger) {
	until := n.Clock.Now()
	for uid, owner := range grants.Pods(left) {
		namespace, name, _ := strings.Cut(owner, "/")
		n.Emit(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}},
			corev1.EventTypeNormal, ReasonReleased, had(left, uid, until))
	}
}

// had is the pod's slices in the ledger as text, by the time from which it had them.
func had(ledger *v1alpha1.SliceLedger, pod types.UID, until time.Time) string {
	during := map[string][]string{}
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		for j := range d.Slices {
			s := &d.Slices[j]
			if s.Pod != pod {
				continue
			}
			of := "until " + timeText(until)
			if s.Since != nil {
				of = "from " + timeText(s.Since.Time) + " to " + timeText(until)
			}
			during[of] = append(during[of], part(ledger, s.Ctr, d.UUID, s.Core, s.Mem, s.EffectiveMode()))
		}
	}
	var all []string
	for _, of := range slices.Sorted(maps.Keys(during)) {
		all = append(all, fmt.Sprintf("%s on node %s; %s", of, ledger.Name, strings.Join(during[of], "; ")))
	}
	return "had slices " + strings.Join(all, "; ")
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Describe is a placement on the ledger's node as text.
func Describe(p *v1alpha1.Placement, ledger *v1alpha1.SliceLedger) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
		for _, d := range p.Containers[name].Devices {
			parts = append(parts, part(ledger, name, d.UUID, d.Core, d.MemMiB, p.Containers[name].Mode))
		}
	}
	if p.Topology != "" {
		parts = append(parts, "topology "+string(p.Topology))
	}
	return fmt.Sprintf("on node %s; %s", p.Node, strings.Join(parts, "; "))
}

// part is a container's part of a device as text. One that the node no longer has has no index.
func part(ledger *v1alpha1.SliceLedger, ctr, uuid string, core v1alpha1.Percent, mem v1alpha1.MiB, mode v1alpha1.Mode) string {
	gpu := uuid
	if i := slices.IndexFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid }); i >= 0 {
		gpu = fmt.Sprintf("GPU %d (%s)", ledger.Status.Devices[i].Index, uuid)
	}
	return fmt.Sprintf("container %s: %s, %s, %s", ctr, gpu, v1alpha1.AmountsText(core, mem), mode)
}
