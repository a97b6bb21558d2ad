// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// A pod is unbooked when it was placed on a node whose ledger does not have its
// slices: somebody deleted the ledger or edited it by hand. Its containers may
// run all the same, those of a pod that is being deleted too. Until its slices are
// back in the ledger nothing else is granted on the node, or it would be granted
// twice.
//
// Containers of a pod that is not known any more keep their devices as well: see
// index.Adrift.

// judge finds out whether the pod is unbooked. The caller holds mu.
func (a *Allocator) judge(pod *corev1.Pod) {
	node := home(pod)
	for _, pods := range a.unbooked {
		delete(pods, pod.UID)
	}
	if node == "" || pod.Annotations[v1alpha1.AnnotationPlacement] == "" || terminal(pod) {
		return
	}
	ledger := a.index.Ledger(node)
	if slices.Contains(a.index.Holders(pod.UID), node) || ledger != nil && slices.Contains(ledger.Status.Released, pod.UID) {
		return
	}
	if a.unbooked[node] == nil {
		a.unbooked[node] = map[types.UID]types.NamespacedName{}
	}
	a.unbooked[node][pod.UID] = keyOf(pod)
}

// judgeLedger judges the pods that a new version of a ledger may concern: those
// that the version before had, and those that were unbooked.
func (a *Allocator) judgeLedger(before *v1alpha1.SliceLedger, node string) {
	var keys []types.NamespacedName
	for _, key := range a.unbooked[node] {
		keys = append(keys, key)
	}
	if before != nil {
		for uid, owner := range book.Pods(before) {
			if !slices.Contains(a.index.Holders(uid), node) {
				keys = append(keys, ownerKey(owner))
			}
		}
	}
	for _, key := range keys {
		if pod := a.pods[key]; pod != nil {
			a.judge(pod)
		}
	}
}

// wakeFor wakes the waiting pods once a node has no unbooked pods left. The caller
// holds mu.
func (a *Allocator) wakeFor(node string) {
	if len(a.unbooked[node]) == 0 {
		a.wake(wakeAll)
	}
}

// settled are the nodes without unbooked pods.
func (a *Allocator) settled(nodes []*placement.Node) []*placement.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(nodes, func(n *placement.Node) bool { return len(a.unbooked[n.Name]) > 0 })
}

// rebook writes the slices of unbooked pods back, as their placement says.
func (a *Allocator) rebook(ctx context.Context, node string) error {
	a.mu.Lock()
	var pods []*corev1.Pod
	for _, key := range a.unbooked[node] {
		if pod := a.pods[key]; pod != nil {
			pods = append(pods, pod)
		}
	}
	a.mu.Unlock()
	known := a.index.Ledger(node)
	if known == nil {
		return nil
	}
	for uid, uuid := range index.Adrift(known) {
		a.Log.Info("containers of a pod that the ledger does not have use a device; nothing is granted there until the node says that they are gone",
			"uid", uid, "device", uuid, "node", node)
	}
	ledger, changed := known.DeepCopy(), false
	for _, pod := range pods {
		plan, ok := planOf(pod, ledger)
		if !ok {
			a.Log.Info("a pod is placed on a node whose ledger does not have its slices and has no room for them; nothing else is granted there until the pod is gone",
				"pod", keyOf(pod), "node", node)
			continue
		}
		if err := book.Grant(ledger, pod.UID, keyOf(pod).String(), plan); err != nil {
			return err
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return a.write(ctx, ledger)
}

// planOf is the pod's placement as a plan, if the ledger has the room for it.
// Where a container runs counts for more than where the annotation says: slices
// can have been moved.
func planOf(pod *corev1.Pod, ledger *v1alpha1.SliceLedger) (placement.Plan, bool) {
	placed, err1 := v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement])
	demand, _, err2 := demandOf(pod)
	if err1 != nil || err2 != nil || placed.Node != ledger.Name {
		return placement.Plan{}, false
	}
	devices := map[string][]string{}
	for name, c := range placed.Containers {
		for _, d := range c.Devices {
			devices[name] = append(devices[name], d.UUID)
		}
	}
	running := map[string][]string{}
	for _, s := range ledger.Status.Slices {
		// A container that is started again can be listed twice for a moment.
		if s.Pod == pod.UID && !slices.Contains(running[s.Ctr], s.UUID) {
			running[s.Ctr] = append(running[s.Ctr], s.UUID)
		}
	}
	maps.Copy(devices, running)
	return placement.Rebook(demand, index.Unfiltered(ledger), devices)
}
