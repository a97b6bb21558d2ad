// SPDX-License-Identifier: Apache-2.0

// Package eventhandlers owns the way of an update. It takes in what the watches show and what
// our own writes answer, one after the other. It hands what the cache says that it
// changes to the gangs and to the queue.
//
// It decides nothing and keeps nothing.
package eventhandlers

import (
	"maps"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Handlers take in updates. They may be called concurrently.
type Handlers struct {
	Cache   *cache.Cache
	Groups  *gang.Groups
	Queue   *queue.Queue
	Filters *feasible.Filters
	// Agents are the node agents' pods; nil where agents do not run in pods.
	Agents *agents.Agents
	Log    logr.Logger

	// mu has updates fanned out in the order in which the cache took them in.
	mu      sync.Mutex
	gone    []func(*corev1.Pod)
	victims []func(namespace string)
}

// OnGone calls forget for each pod that is known no more, after the cache has forgotten it.
// Call it before the first update.
func (h *Handlers) OnGone(forget func(*corev1.Pod)) { h.gone = append(h.gone, forget) }

// OnVictims calls changed when pods of a namespace may be evicted that might not be before; of any
// where it is empty. Call it before the first update.
func (h *Handlers) OnVictims(changed func(namespace string)) { h.victims = append(h.victims, changed) }

// SetPod takes in a pod that the watch shows. Objects are kept: nobody may change them
// afterwards.
func (h *Handlers) SetPod(pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Agents != nil {
		h.agentChanged(h.Agents.Set(pod))
	}
	h.fanOut(h.Cache.SetPod(pod))
}

// SetWritten takes in a pod that a write or a live read returned. Like in the caches, what
// nobody reads is not kept.
func (h *Handlers) SetWritten(pod *corev1.Pod) {
	pod.ManagedFields = nil
	podstate.TrimPod(pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fanOut(h.Cache.SetWritten(pod))
}

// DeletePod takes out a pod. last is its state at the deletion when exact, else some earlier
// one.
func (h *Handlers) DeletePod(last *corev1.Pod, exact bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Agents != nil {
		h.agentChanged(h.Agents.Delete(last))
	}
	h.fanOut(h.Cache.DeletePod(last, exact))
}

// SetLedger takes in a ledger that the watch shows or a write returned.
func (h *Handlers) SetLedger(ledger *v1alpha1.SliceLedger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fanOut(h.Cache.SetLedger(ledger))
}

// DeleteLedger takes out a ledger.
func (h *Handlers) DeleteLedger(ledger *v1alpha1.SliceLedger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fanOut(h.Cache.DeleteLedger(ledger))
}

// DropDraft takes back what was drafted on a version of a ledger.
func (h *Handlers) DropDraft(known *v1alpha1.SliceLedger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fanOut(h.Cache.DropDraft(known))
}

// Assume counts a pod that is being placed on the node that was decided on, or on none.
func (h *Handlers) Assume(pod *corev1.Pod, node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fanOut(h.Cache.Assume(pod, node))
}

// FinishPlacing has pods that were placed count where the API server has them.
func (h *Handlers) FinishPlacing(pods []*corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fanOut(h.Cache.FinishPlacing(pods))
}

// SetNode takes in a node. old is nil for a new one.
func (h *Handlers) SetNode(old, node *corev1.Node) {
	h.Filters.SetNode(node)
	h.changed(old, node, "")
	if old == nil || !maps.Equal(old.Labels, node.Labels) {
		h.Queue.Add(queue.Item{Node: node.Name}) // tides select nodes by labels
	}
}

// DeleteNode takes out a node. Its ledger is deleted with it. Pods that are spread may have
// waited for the domain that was its alone.
func (h *Handlers) DeleteNode(node *corev1.Node) {
	if err := h.Filters.DeleteNode(node.Name); err != nil {
		h.Log.Error(err, "Cannot forget a node", "node", node.Name)
	}
	h.changed(node, nil, "")
}

// Changed takes in a change of something else that the filters read. One of the two is nil for an
// object that is new or gone.
func (h *Handlers) Changed(was, is any) {
	object, _ := is.(metav1.Object)
	if object == nil {
		object, _ = was.(metav1.Object)
	}
	namespace := object.GetNamespace()
	if _, of := object.(*corev1.Namespace); of {
		namespace = object.GetName()
		var labels map[string]string
		if now, there := is.(*corev1.Namespace); there {
			labels = now.Labels
		}
		h.Cache.Priorities.SetNamespace(namespace, labels)
	}
	h.changed(was, is, namespace)
}

// ClassesChanged says that there are other GPUClasses than before.
func (h *Handlers) ClassesChanged() {
	h.changed(nil, &v1alpha1.GPUClass{}, "")
	// Lost slices of a container of the class may now be restored on another device.
	for _, node := range h.Cache.NodesMissing() {
		h.Queue.Add(queue.Item{Node: node})
	}
}

// TidesChanged says that there are other Tides than before.
func (h *Handlers) TidesChanged() {
	for _, node := range h.Cache.Index.Names() {
		h.Queue.Add(queue.Item{Node: node})
	}
}

// GroupChanged says that a PodGroup says something else than before.
func (h *Handlers) GroupChanged(name podrequest.Group) {
	if h.Groups.Changed(name) {
		h.Queue.Add(queue.Item{Gang: name})
	}
	h.changed(nil, &podgroup.Sizes{}, name.Namespace)
}

// GroupsChanged says that all PodGroups of an API may.
func (h *Handlers) GroupsChanged(api podrequest.GroupAPI) {
	h.addGangs(h.Groups.AllChanged(api))
	h.changed(nil, &podgroup.Sizes{}, "")
}

func (h *Handlers) addGangs(names []podrequest.Group) {
	for _, name := range names {
		h.Queue.Add(queue.Item{Gang: name})
	}
}

// agentChanged has a node's ledger looked at.
func (h *Handlers) agentChanged(node string) {
	if node != "" {
		h.Queue.Add(queue.Item{Node: node})
	}
}

// fanOut hands on what an update changes. The caller holds mu.
func (h *Handlers) fanOut(ch cache.Changes) {
	for _, pod := range ch.Gone {
		h.Queue.Delete(pod)
		for _, forget := range h.gone {
			forget(pod)
		}
		h.addGangs(h.Groups.Delete(pod))
	}
	if ch.Pod != nil {
		h.addGangs(h.Groups.Update(ch.Pod))
	}
	for _, c := range ch.Counted {
		h.Queue.Counted(c.Pod, c.Node)
	}
	for _, node := range ch.Ledgers {
		h.Queue.Add(queue.Item{Node: node})
	}
	if ch.Freed != 0 {
		h.Queue.MoveToActive(ch.Freed)
	}
	if ch.Old != nil {
		h.changed(ch.Old, ch.Pod, ch.Pod.Namespace)
	}
	if ch.Pod != nil {
		h.Queue.Update(ch.Old, ch.Pod)
	}
}
