// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Grant writes slices for the pod's containers on the ledger's devices into its spec: on is
// the index of each container's device. Sums are not looked at.
func Grant(l *v1alpha1.SliceLedger, p *corev1.Pod, on map[string]int) *v1alpha1.SliceLedger {
	shares := sharesOf(p)
	for _, c := range p.Spec.Containers {
		at, asked := on[c.Name]
		if !asked {
			continue
		}
		uuid := l.Status.Devices[at].UUID
		i := slices.IndexFunc(l.Spec.Devices, func(d v1alpha1.DeviceLedger) bool { return d.UUID == uuid })
		if i < 0 {
			i = len(l.Spec.Devices)
			l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: DeviceMiB})
		}
		l.Spec.Devices[i].Slices = append(l.Spec.Devices[i].Slices, v1alpha1.Slice{
			Pod: p.UID, Owner: p.Namespace + "/" + p.Name, Ctr: c.Name, Core: shares[c.Name].Core, Mem: memoryOf(shares[c.Name]), Idle: shares[c.Name].Idle})
	}
	return l
}

// Place takes the pod's gate off and gives it a placement on the ledger's node, as Grant
// would grant it.
func Place(p *corev1.Pod, l *v1alpha1.SliceLedger, on map[string]int) *corev1.Pod {
	placed := v1alpha1.Placement{Version: v1alpha1.Version, Node: l.Name, Containers: map[string]v1alpha1.PlacedShare{}}
	for ctr, share := range sharesOf(p) {
		placed.Containers[ctr] = v1alpha1.PlacedShare{Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{
			{UUID: l.Status.Devices[on[ctr]].UUID, Core: share.Core, MemMiB: memoryOf(share)}}}
	}
	text, err := placed.Encode()
	if err != nil {
		panic(err)
	}
	p.Annotations[v1alpha1.AnnotationPlacement], p.Spec.SchedulingGates = text, nil
	return p
}

func sharesOf(p *corev1.Pod) map[string]v1alpha1.Share {
	doc, err := v1alpha1.ParseShares(p.Annotations[v1alpha1.AnnotationShares])
	if err != nil {
		panic(err)
	}
	return doc.Containers
}

// memoryOf is what the share is of a device.
func memoryOf(s v1alpha1.Share) v1alpha1.MiB {
	mem, _ := s.Memory(DeviceMiB)
	return mem
}
