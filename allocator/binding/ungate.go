// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/refusal"
	"vernier.dev/vernier/api/v1alpha1"
)

// UngatePatch is the one write on a pod. It applies only to the very version of
// the pod that was decided on, which has our gate as its only one. A selector or an
// affinity that was narrowed since can make the node wrong. It cannot be half
// applied. Gated pods change rarely, so that a conflict is not the rule.
//
// It is a strategic merge, which the API server applies to the object as it has it.
// Of all ways to change a pod this one costs it least. For a JSON patch it writes
// the whole pod as JSON and reads it again.
func UngatePatch(pod *corev1.Pod, placed *v1alpha1.Placement) ([]byte, error) {
	document, err := placed.Encode()
	if err != nil {
		return nil, err
	}
	// The rest of the affinity stays as it is, and the cache does not have all of it.
	required := corev1.Affinity{}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution}
	}
	type object = map[string]any
	return json.Marshal(object{
		"metadata": object{
			"uid": pod.UID, "resourceVersion": pod.ResourceVersion,
			"annotations": object{v1alpha1.AnnotationPlacement: document},
		},
		"spec": object{"affinity": podstate.PinTo(&required, placed.Node), "schedulingGates": nil},
	})
}

// BindPatience is when an ungated pod is looked at again: as a rule the scheduler has bound it.
const BindPatience = 10 * time.Second

// Ungate writes on the pod what the node's ledger grants it, and takes its
// gate off, as soon as the node is ready.
func (b *Binder) Ungate(ctx context.Context, pod *corev1.Pod, node string) error {
	_, err := b.ungate(ctx, pod, node)
	return err
}

// MayUngate reports whether the API server would take the gate off all members of a gang. Some
// alone are not to be ungated: they can't be gated again.
func (b *Binder) MayUngate(ctx context.Context, members []*Pending) (bool, error) {
	taken := make([]bool, len(members))
	err := b.All(len(members), func(i int) (err error) {
		taken[i], err = b.ungate(ctx, members[i].Pod, members[i].Node, client.DryRunAll)
		return err
	})
	return !slices.Contains(taken, false), err
}

// ungate reports whether the pod is ungated, or would be.
func (b *Binder) ungate(ctx context.Context, pod *corev1.Pod, node string, o ...client.PatchOption) (taken bool, err error) {
	ledger := b.Cache.Index.Ledger(node)
	if ledger == nil {
		return false, queue.ErrAgain
	}
	placed, dry := grants.PlacementOf(ledger, pod), len(o) > 0
	if placed == nil || !dry && grants.Held(ledger)[pod.UID] != nil {
		return false, queue.ErrAgain
	}
	if !dry && b.staged(pod, ledger) {
		return false, nil
	}
	if is, due := b.placement(pod); is.write == writeGate && b.putOff(pod, due) {
		return false, nil
	}
	patch, err := UngatePatch(pod, placed)
	if err != nil {
		return false, err
	}
	waited := b.Queue.WasSent(pod)
	written := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = b.Client.Patch(ctx, written, client.RawPatch(types.StrategicMergePatchType, patch), append(o, FieldOwner)...)
	switch {
	case err == nil && dry:
		return true, nil
	case err == nil:
		b.refusals.forget(target{of: string(pod.UID)})
		b.Handlers.SetWritten(written)
		b.Queue.AddAfter(queue.Item{Pod: podstate.KeyOf(pod)}, BindPatience)
		placements.Inc()
		waitSeconds.Observe(max(0, b.Clock.Since(pod.CreationTimestamp.Time).Seconds()))
		b.Notify.Placed(pod, notify.Describe(placed, ledger), waited)
		return true, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		if apierrors.IsConflict(err) {
			conflicts.WithLabelValues("pod").Inc()
		}
		return false, b.reread(ctx, pod, node, err)
	case refusal.Is(err):
		return false, b.placementRefused(pod, writeGate, node, err)
	default:
		return false, fmt.Errorf("ungating pod %s: %w", podstate.KeyOf(pod), err)
	}
}

// reread finds out why the patch did not apply.
func (b *Binder) reread(ctx context.Context, pod *corev1.Pod, node string, cause error) error {
	live, err := b.Live(ctx, pod)
	switch {
	case err != nil:
		return err
	case live == nil || !podstate.Ready(live):
		// It is gone, and the watch says whether it ever ran, and so who releases; or our own
		// patch arrived before, another replica was faster, or another gate came off last:
		// whatever does not belong to this node is released.
		b.Queue.Add(queue.Item{Node: node})
		b.Queue.AddAfter(queue.Item{Pod: podstate.KeyOf(pod)}, BindPatience)
		return nil
	case live.ResourceVersion != pod.ResourceVersion:
		return queue.ErrAgain
	default:
		// A webhook may refuse with any answer.
		return b.placementRefused(pod, writeGate, node, cause)
	}
}
