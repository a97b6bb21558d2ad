// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Reasons of the events on pods.
const (
	reasonPlaced     = "VernierPlaced"
	reasonWaiting    = "VernierWaiting"
	reasonInvalid    = "VernierInvalid"
	reasonPinRefused = "VernierPinRefused"
	reasonMoved      = "VernierMoved"
	reasonUnhealthy  = "VernierUnhealthy"
	reasonRecovered  = "VernierRecovered"
)

// maxNote is what the API server takes as an event's message.
const maxNote = 1024

// tell tells the pod's owner by an event, and the log, which keeps it for longer.
func (a *Allocator) tell(pod *corev1.Pod, kind, reason, text string) {
	a.Log.Info("told", "pod", keyOf(pod), "uid", pod.UID, "reason", reason, "note", text)
	a.Events.Event(pod, kind, reason, note(text))
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
			parts = append(parts, fmt.Sprintf("container %s: GPU %d (%s), %d core + %d MiB, %s",
				name, index[d.UUID], d.UUID, d.Core, d.MemMiB, p.Containers[name].Mode))
		}
	}
	return fmt.Sprintf("on node %s; %s", p.Node, strings.Join(parts, "; "))
}
