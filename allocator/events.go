// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasons of the events on pods.
const (
	reasonPlaced     = "VernierPlaced"
	reasonWaiting    = "VernierWaiting"
	reasonInvalid    = "VernierInvalid"
	reasonPinRefused = "VernierPinRefused"
	reasonIgnored    = "VernierNoScheduler"
	reasonMoved      = "VernierMoved"
	reasonUnhealthy  = "VernierUnhealthy"
	reasonRecovered  = "VernierRecovered"
	reasonAgentAway  = "VernierAgentAway"
)

// maxNote is what the API server takes as an event's message.
const maxNote = 1024

// tell tells the pod's owner by an event, and the log, which keeps it for longer.
func (a *Allocator) tell(pod *corev1.Pod, kind, reason, text string) {
	a.Log.Info("told", "pod", podstate.KeyOf(pod), "uid", pod.UID, "reason", reason, "note", text)
	a.Events.Event(pod, kind, reason, note(text))
}

// eventPatience bounds the wait for one event to be written. Nobody is placed meanwhile, and
// clusters may keep their events in an etcd of its own, which can be away alone.
const eventPatience = 2 * time.Second

// eventPause is for how long none is written after one that was not taken in time.
const eventPause = time.Minute

// tellOnce is tell for what is told about a change that is written after it: once,
// whoever dies in between and does it again. What the API server does not take, or not in
// time, is left to the log: the change is more important.
func (a *Allocator) tellOnce(ctx context.Context, pod *corev1.Pod, kind, reason, text, change string) error {
	now := metav1.NewTime(a.Clock.Now())
	log := a.Log.WithValues("pod", podstate.KeyOf(pod), "uid", pod.UID, "reason", reason, "note", text)
	if now.Time.Before(a.eventsFrom) {
		log.Info("not told, since the API server takes no events in time")
		return nil
	}
	inTime, cancel := context.WithTimeout(ctx, eventPatience)
	defer cancel()
	err := a.Client.Create(inTime, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: eventName(pod, change)},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Type: kind, Reason: reason, Message: note(text), FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: eventComponent}, ReportingController: eventComponent,
	})
	var answer apierrors.APIStatus
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err == nil:
		log.Info("told")
	case ctx.Err() == nil && inTime.Err() != nil:
		a.eventsFrom = a.Clock.Now().Add(eventPause)
		log.Error(err, "not told")
	case ctx.Err() == nil && errors.As(err, &answer):
		log.Error(err, "not told")
	default:
		return fmt.Errorf("telling pod %s of %s: %w", podstate.KeyOf(pod), reason, err)
	}
	return nil
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

// note is a text as an event has it.
func note(text string) string {
	if len(text) > maxNote {
		return strings.ToValidUTF8(text[:maxNote-3], "") + "..."
	}
	return text
}

// describe is a placement in words.
func describe(p *v1alpha1.Placement, index map[string]int32) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
		for _, d := range p.Containers[name].Devices {
			parts = append(parts, fmt.Sprintf("container %s: GPU %d (%s), %s, %s",
				name, index[d.UUID], d.UUID, v1alpha1.AmountsText(d.Core, d.MemMiB), p.Containers[name].Mode))
		}
	}
	return fmt.Sprintf("on node %s; %s", p.Node, strings.Join(parts, "; "))
}
