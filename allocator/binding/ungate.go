// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/notify"
	"vernier.dev/vernier/allocator/pin"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
)

// UngatePatch is the one write on a pod. It applies only to the very version of
// the pod that was decided on, which has our gate as its only one: a selector or an
// affinity that was narrowed since can make the node wrong. It cannot be half
// applied. Gated pods change rarely, so that a conflict is not the rule.
//
// It is a strategic merge, which the API server applies to the object as it has it:
// of all ways to change a pod the one that costs it least. For a JSON patch it writes
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
		"spec": object{"affinity": pin.To(&required, placed.Node), "schedulingGates": nil},
	})
}

// Ungate writes what the node's ledger grants to the pod on the pod, and lets the
// scheduler have it, as soon as the node is ready for it.
func (b *Binder) Ungate(ctx context.Context, pod *corev1.Pod, node string) error {
	ledger := b.Cache.Index.Ledger(node)
	if ledger == nil {
		return queue.ErrAgain
	}
	placed := ledgerspec.PlacementOf(ledger, pod)
	if placed == nil || ledgerspec.Held(ledger)[pod.UID] != nil {
		return queue.ErrAgain
	}
	if b.staged(pod, ledger) {
		return nil
	}
	patch, err := UngatePatch(pod, placed)
	if err != nil {
		return err
	}
	waited := b.Queue.WasSent(pod)
	written := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = b.Client.Patch(ctx, written, client.RawPatch(types.StrategicMergePatchType, patch), FieldOwner)
	switch {
	case err == nil:
		b.Handlers.SetWritten(written)
		placements.Inc()
		waitSeconds.Observe(max(0, b.Clock.Since(pod.CreationTimestamp.Time).Seconds()))
		b.Notify.Placed(pod, notify.Describe(placed, ledger), waited)
		return nil
	case apierrors.IsNotFound(err):
		// Deleted. The watch says whether it ever ran, and so who releases.
		b.Queue.Add(queue.Item{Node: node})
		return nil
	case apierrors.IsConflict(err):
		conflicts.WithLabelValues("pod").Inc()
		return b.reread(ctx, pod, node, err)
	default:
		return fmt.Errorf("ungating pod %s: %w", podstate.KeyOf(pod), err)
	}
}

// reread finds out why the patch did not apply.
func (b *Binder) reread(ctx context.Context, pod *corev1.Pod, node string, cause error) error {
	live, err := b.Live(ctx, pod)
	switch {
	case err != nil:
		return err
	case live == nil || !podstate.Ready(live):
		// It is gone, our own patch arrived before, another replica was faster, or
		// another gate came off last: whatever does not belong to this node is released.
		b.Queue.Add(queue.Item{Node: node})
		return nil
	case live.ResourceVersion != pod.ResourceVersion:
		return queue.ErrAgain
	default:
		return fmt.Errorf("ungating pod %s: %w", podstate.KeyOf(pod), cause)
	}
}
