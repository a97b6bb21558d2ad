// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/missing"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// restore brings a node's ledger in line with its pods: missing grants
// are written back, and those of a pod that runs elsewhere than it is booked go
// where it runs. The latter is a device that recovered at the moment when the pod
// was moved off it. A pod that needs another device comes last, and takes no other pod's place.
func (r *Reconciler) restore(ctx context.Context, node string) error {
	known := r.Cache.Index.Ledger(node)
	if known == nil {
		return nil
	}
	ledger := known
	news := func(pod *corev1.Pod, now *v1alpha1.SliceLedger) bool {
		return !equality.Semantic.DeepEqual(grants.Placement(ledger, pod.UID), grants.Placement(now, pod.UID))
	}
	var unrestorable, moved []*corev1.Pod
	for _, pod := range r.drifted(known) {
		if podrequest.OnIdle(pod) {
			// Nothing but this look keeps the decision from a ledger that is behind its pods.
			if err := r.Binder.Refresh(ctx, node); err != nil {
				return err
			}
			if now := r.Cache.Index.Ledger(node); now == nil || now.ResourceVersion != known.ResourceVersion {
				return queue.ErrAgain
			}
			if err := r.evictIdle(ctx, pod, node, binding.IdleGone, "its idle slice was taken back"); err != nil {
				return err
			}
		} else if now, fits := missing.InPlace(pod, ledger); !fits {
			unrestorable = append(unrestorable, pod)
		} else if news(pod, now) {
			ledger = now
		}
	}
	for _, pod := range unrestorable {
		if now, fits := missing.Moved(pod, ledger, r.Classes, r.Clock.Now()); fits && news(pod, now) {
			ledger, moved = now, append(moved, pod)
			continue
		}
		r.Log.Info("The ledger of a pod's node does not have its slices and has no room for them. Its containers that do not run cannot start until others are gone",
			"pod", podstate.KeyOf(pod), "node", node)
	}
	if ledger == known {
		return nil
	}
	if err := r.Binder.Replace(ctx, known, ledger); err != nil {
		return err
	}
	for _, pod := range moved {
		r.Notify.Emit(pod, corev1.EventTypeNormal, notify.ReasonMoved, fmt.Sprintf("its slices were lost from the ledger of node %s, and a device that they were on is gone: moved; now %s",
			node, notify.Describe(grants.PlacementOf(ledger, pod), ledger)))
	}
	return nil
}

// drifted are the pods that are not in the ledger as they should be, oldest first.
// Those that run come before the others: no other pod can have their devices.
func (r *Reconciler) drifted(ledger *v1alpha1.SliceLedger) []*corev1.Pod {
	pods, known := r.Cache.Missing(ledger.Name), r.Cache.Granted(ledger)
	for uid, uuid := range index.Ungranted(ledger) {
		switch {
		case pods[uid] != nil:
		case known[uid] != nil:
			pods[uid] = known[uid]
		default:
			r.Log.Info("Containers of a pod that is not known use a device that the ledger does not give them. Nothing is granted there until the node says that they are gone",
				"podUID", uid, "gpu", uuid, "node", ledger.Name)
		}
	}
	for uid, pod := range known {
		if pods[uid] == nil && podstate.CreateFailed(pod) && short(pod, ledger) {
			pods[uid] = pod
		}
	}
	var running, others []*corev1.Pod
	for _, pod := range podstate.OldestFirst(pods) {
		if missing.Attached(ledger, pod) {
			running = append(running, pod)
		} else {
			others = append(others, pod)
		}
	}
	return append(running, others...)
}

// short reports whether the ledger of the pod's node has other slices for it than it asks
// for: somebody has edited them by hand, and the node starts nothing with them.
func short(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) bool {
	demand, err := placement.GrantedDemand(podrequest.Of(pod))
	return err == nil && pod.Spec.NodeName == ledger.Name && !grants.Serves(ledger, pod.UID, demand.Shares)
}
