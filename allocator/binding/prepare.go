// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// PrepareGrace is how long a pod that has its slices stays at the gate while its node
// makes the MIG instances for them. That takes a second or two. So it does while the node lacks
// capacity for a pod that begins with less than it asks for. A container that came
// earlier would be refused, and the kubelet tries again no sooner than after 10 s. Past
// it the pod is ungated all the same: the refusal says what keeps the node.
const PrepareGrace = 5 * time.Second

// staged reports whether the pod is to wait for its node. It is looked at again when the
// ledger changes, and when the time is over.
func (b *Binder) staged(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) bool {
	now := b.Clock.Now()
	left := PrepareGrace - now.Sub(b.Cache.Stage(pod, ledger.Name, now))
	less := len(podrequest.StartOf(pod)) > 0 || podrequest.Burstable(pod)
	if prepared(ledger, pod.UID) && !(less && b.Cache.Overcommitted(ledger.Name)) || left <= 0 {
		b.Cache.Unstage(pod.UID)
		return false
	}
	if less {
		left = min(left, capacityPoll) // a node that shows more of a resource is no change of its ledger
	}
	b.Queue.AddPodAfter(pod, left)
	return true
}

// capacityPoll is how often the capacity of a node is looked at that a pod waits for.
const capacityPoll = 200 * time.Millisecond

// prepared reports whether the node shows the instances of all of the pod's slices.
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
