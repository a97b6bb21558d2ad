// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// prepareGrace is how long a pod that has its slices stays at the gate while its node
// makes the MIG instances for them, which takes a second or two. A container that came
// earlier would be refused, and the kubelet tries again no sooner than after 10 s. Past
// it the pod is let go all the same: what keeps the node, the refusal says.
const prepareGrace = 5 * time.Second

// preparation is what a pod waits for that has its slices.
type preparation struct {
	node  string
	since time.Time
}

// preparing tells whether the pod is to wait for its node. It is looked at again when
// the ledger changes, and when the time is over.
func (a *Allocator) preparing(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, p := a.Clock.Now(), a.preparations[pod.UID]
	if p.node != ledger.Name {
		p = preparation{node: ledger.Name, since: now}
	}
	left := prepareGrace - now.Sub(p.since)
	if prepared(ledger, pod.UID) || left <= 0 {
		delete(a.preparations, pod.UID)
		return false
	}
	a.preparations[pod.UID] = p
	a.enqueueAfter(a.itemOf(pod), left)
	return true
}

// prepared tells whether the node shows the instances of all of the pod's slices.
func prepared(ledger *v1alpha1.SliceLedger, pod types.UID) bool {
	for _, device := range ledger.Spec.Devices {
		for _, slice := range device.Slices {
			if slice.Pod == pod && slice.MIG != nil && !shown(ledger, device.UUID, *slice.MIG) {
				return false
			}
		}
	}
	return true
}

func shown(ledger *v1alpha1.SliceLedger, device string, place v1alpha1.MIGPlace) bool {
	i := slices.IndexFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == device })
	return i >= 0 && slices.ContainsFunc(ledger.Status.Devices[i].Instances, func(i v1alpha1.MIGInstance) bool {
		return i.MIGPlace == place && i.UUID != ""
	})
}
