// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// StateFinished of a slice: its container has completed and is not started again. It
// counts until the pod has ended.
const StateFinished = "finished"

// Finish marks the granted slices whose containers have completed, by the status of their
// pods. A ledger does not tell them from containers that have not started.
func Finish(all []Slice, pods []corev1.Pod) {
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for i := range pods {
		byUID[pods[i].UID] = &pods[i]
	}
	for i := range all {
		if s := &all[i]; s.State == StateGranted {
			if pod := byUID[s.PodUID]; pod != nil && containerState(pod, s.Container) == StateFinished {
				s.State = StateFinished
			}
		}
	}
}

// SlicesOfPods lists slices by the placements of pods, for users who may not read ledgers.
// Device indexes, guarantees and what is being released are not known there.
func SlicesOfPods(pods []corev1.Pod) []Slice {
	var all []Slice
	for i := range pods {
		pod := &pods[i]
		placed, err := podrequest.PlacementOf(pod)
		if err != nil || podstate.Terminal(pod) {
			continue
		}
		for name, share := range placed.Containers {
			for _, d := range share.Devices {
				all = append(all, Slice{
					Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.UID, Container: name, Node: placed.Node,
					UUID: d.UUID, Core: d.Core, Mem: d.MemMiB, Mode: share.Mode, State: containerState(pod, name),
				})
			}
		}
	}
	slices.SortFunc(all, func(a, b Slice) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container), cmp.Compare(a.UUID, b.UUID))
	})
	return all
}

// containerState is the state of a container's slices by the pod's status.
func containerState(pod *corev1.Pod, name string) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch ended := s.State.Terminated; {
		case s.Name != name:
		case s.State.Running != nil:
			return StateAttached
		case ended != nil && !restarts(pod, name, ended.ExitCode):
			return StateFinished
		}
	}
	return StateGranted
}

// restarts reports whether the kubelet starts the container again after that exit code.
func restarts(pod *corev1.Pod, name string, exitCode int32) bool {
	named := func(c corev1.Container) bool { return c.Name == name }
	if i := slices.IndexFunc(pod.Spec.InitContainers, named); i >= 0 {
		own := pod.Spec.InitContainers[i].RestartPolicy
		return exitCode != 0 || own != nil && *own == corev1.ContainerRestartPolicyAlways
	}
	policy := pod.Spec.RestartPolicy
	if i := slices.IndexFunc(pod.Spec.Containers, named); i >= 0 && pod.Spec.Containers[i].RestartPolicy != nil {
		policy = corev1.RestartPolicy(*pod.Spec.Containers[i].RestartPolicy)
	}
	return policy != corev1.RestartPolicyNever && (policy != corev1.RestartPolicyOnFailure || exitCode != 0)
}
