// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	ledgers "vernier.dev/vernier/allocator/state/index"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Kept is the room that the allocator keeps for pods, by node, and the pods.
type Kept struct {
	reserved map[string][]placement.Reserved
	pods     map[string][]string
}

// KeptFor is the room that is kept for the pods, by the allocator's events. These name the GPUs;
// how much of each is what the pod asks for. The amount that others still have there before they
// end is not known. Nothing of it counts as free beside the pod.
func KeptFor(pods []corev1.Pod, verdicts []corev1.Event, known *classes.Set, all []v1alpha1.SliceLedger) Kept {
	k := Kept{map[string][]placement.Reserved{}, map[string][]string{}}
	// All pods of a gang are sent the same event.
	left := map[string][]*placement.Node{}
	said := model.SaidIn(verdicts)
	for i := range pods {
		r := said.Reserved(&pods[i])
		if r == nil {
			continue
		}
		demand, err := placement.DemandOf(podrequest.Of(&pods[i]), known)
		if err != nil {
			continue
		}
		if left[r.Message] == nil {
			left[r.Message] = emptied(r.GPUs(), all)
		}
		for n, room := range left[r.Message] {
			plan, fits := placement.Fit(demand, room)
			if !fits {
				continue
			}
			left[r.Message][n] = room.Without(&plan)
			for _, g := range plan.Grants {
				k.reserved[room.Name] = append(k.reserved[room.Name], placement.Reserved{UUID: g.UUID, Grants: []placement.Grant{g}})
			}
			k.pods[room.Name] = append(k.pods[room.Name], pods[i].Namespace+"/"+pods[i].Name)
			break
		}
	}
	return k
}

// emptied are the GPUs as if nothing were granted of them, by node.
func emptied(gpus []model.GPUOf, all []v1alpha1.SliceLedger) (rooms []*placement.Node) {
	for i := range all {
		bare := all[i]
		bare.Spec.Devices, bare.Status.Slices = nil, nil
		if room := ledgers.Room(&bare); room != nil {
			room.Devices = slices.DeleteFunc(room.Devices, func(d placement.Device) bool {
				return !slices.Contains(gpus, model.GPUOf{Node: room.Name, Index: d.Index})
			})
			rooms = append(rooms, room)
		}
	}
	return rooms
}

// Hide is the room of a node without what is kept of it.
func (k Kept) Hide(room *placement.Node) *placement.Node { return room.Hide(k.reserved[room.Name]) }

// on are the pods for which room of the node is kept.
func (k Kept) on(node string) []string { return k.pods[node] }

// shownNames bounds the names: a gang has many pods.
const shownNames = 4

// some names the first of the pods.
func some(names []string) string { return v1alpha1.NamesText(names, shownNames) }
