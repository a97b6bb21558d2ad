// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// The name of a gang can be used again while pods of an earlier incarnation are there: those
// that have done their work and that nobody has cleaned up, and those of a controller that was
// deleted and made again, which go a moment later. They are no members of the later one.
//
// No object says of which incarnation a pod is; it follows from the pods themselves. Pods that
// were there at the same time are of one, and so are those of one controller, as a Job's pod
// that is tried again. Pods without a controller that come when all others have ended replace
// failed ones, until as many have succeeded as must start together. Then Kueue, which counts
// likewise, calls the group finished. The last incarnation is the one that
// counts: every pod that has not ended is of it.

// currentIncarnation is those of a group's pods, oldest first, that are of its last
// incarnation.
func (gs *Groups) currentIncarnation(name podrequest.Group, pods []*corev1.Pod) []*corev1.Pod {
	if len(pods) < 2 {
		return pods
	}
	gone := replaced(pods)
	var current []*corev1.Pod
	var until time.Time
	goesOn, succeeded, controllers := false, 0, map[types.UID]bool{}
	for _, pod := range pods {
		controller := controllerOf(pod).uid
		if gone[controller] {
			continue
		}
		if len(current) > 0 && !goesOn && pod.CreationTimestamp.After(until) {
			joins := controllers[controller]
			if joins && controller == "" {
				least, err := gs.sizes.Min(name, current)
				joins = err != nil || succeeded < least
			}
			if !joins {
				current, until, succeeded = nil, time.Time{}, 0
				clear(controllers)
			}
		}
		current, controllers[controller] = append(current, pod), true
		if pod.Status.Phase == corev1.PodSucceeded {
			succeeded++
		}
		if end, over := endOf(pod); !over {
			goesOn = true
		} else if end.After(until) {
			until = end
		}
	}
	return current
}

// controller is what made a pod; the zero value for a pod that nobody would make again.
type controller struct {
	controllerName
	uid types.UID
}

type controllerName struct{ group, kind, name string }

func controllerOf(pod *corev1.Pod) controller {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		api, _, _ := strings.Cut(ref.APIVersion, "/")
		return controller{controllerName{api, ref.Kind, ref.Name}, ref.UID}
	}
	return controller{}
}

// replaced are the controllers that are gone for sure: another one has their name, and its
// first pod is younger than theirs. The pods are oldest first.
func replaced(pods []*corev1.Pod) (gone map[types.UID]bool) {
	firsts, latest := map[types.UID]*corev1.Pod{}, map[controllerName]*corev1.Pod{}
	for _, pod := range pods {
		c := controllerOf(pod)
		if firsts[c.uid] != nil || c.uid == "" || pod.DeletionTimestamp != nil {
			continue
		}
		firsts[c.uid], latest[c.controllerName] = pod, pod
	}
	if len(latest) == len(firsts) {
		return nil
	}
	gone = map[types.UID]bool{}
	for uid, first := range firsts {
		gone[uid] = first.CreationTimestamp.Before(&latest[controllerOf(first).controllerName].CreationTimestamp)
	}
	return gone
}

// endOf is when a pod ended, as far as it says so: when its last container did, or when
// its deletion was asked for, whichever was first. One that failed and has a container of
// which nobody saw the end, as none ever ran or the node was lost, did so when its last
// condition changed.
func endOf(pod *corev1.Pod) (end time.Time, over bool) {
	if podstate.Terminal(pod) {
		failed, seen := pod.Status.Phase == corev1.PodFailed, len(pod.Status.ContainerStatuses) > 0
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				if t := list[i].State.Terminated; t != nil {
					end = later(end, t.FinishedAt)
				} else {
					seen = false
				}
			}
		}
		if failed && !seen {
			end = later(end, pod.CreationTimestamp)
			for i := range pod.Status.Conditions {
				end = later(end, pod.Status.Conditions[i].LastTransitionTime)
			}
		}
	}
	if at := pod.DeletionTimestamp; at != nil {
		asked := at.Time
		if s := pod.DeletionGracePeriodSeconds; s != nil {
			asked = asked.Add(-time.Duration(*s) * time.Second)
		}
		if end.IsZero() || asked.Before(end) {
			end = asked
		}
	}
	return end, !end.IsZero()
}

func later(a time.Time, b metav1.Time) time.Time {
	if b.After(a) {
		return b.Time
	}
	return a
}
