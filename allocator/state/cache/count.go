// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/podstate"
)

// stage is the node that a gated pod with slices waits for, and since when.
type stage struct {
	node  string
	since time.Time
}

// StartPlacing notes that the pod is being placed, so that its deletion in that time is not
// lost.
func (c *Cache) StartPlacing(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.placing[pod.UID] = ""
}

// Assume counts a pod that is being placed on the node that was decided on, or on none.
func (c *Cache) Assume(pod *corev1.Pod, node string) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.placing[pod.UID] = node
	if known := c.current(pod); known != nil {
		c.count(known, &ch)
	}
	return ch
}

// FinishPlacing ends StartPlacing: the pods count where the API server has them.
func (c *Cache) FinishPlacing(pods []*corev1.Pod) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pod := range pods {
		delete(c.placing, pod.UID)
		c.forgetUnbound(pod.UID)
		// One whose gate is off was counted then.
		if known := c.current(pod); known != nil && podstate.Ready(known) {
			c.count(known, &ch)
		}
	}
	return ch
}

// GiveUp notes that the pod, which was not bound in time, is to have no slices and
// no room on its node until then. Another leader gives it the time once more.
func (c *Cache) GiveUp(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current(pod) != nil {
		c.givenUp[pod.UID] = true
	}
}

// Stage notes that the pod, which has its slices, waits for the node, and returns since when.
func (c *Cache) Stage(pod *corev1.Pod, node string, now time.Time) (since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.staged[pod.UID]
	if s.node != node {
		s = stage{node: node, since: now}
	}
	if c.current(pod) != nil {
		c.staged[pod.UID] = s
	}
	return s.since
}

// Overcommitted reports whether pods on the node ask for more of its GPUs than it shows.
func (c *Cache) Overcommitted(node string) bool { return c.filters.Overcommitted(node) }

// Unstage ends Stage.
func (c *Cache) Unstage(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.staged, pod)
}

// count counts the pod where it is or will be, and returns where that is.
func (c *Cache) count(pod *corev1.Pod, ch *Changes) (node string) {
	node = c.countedNode(pod)
	if c.countOn(pod, node) {
		ch.free(OnRefused)
	}
	c.nominate(pod, podstate.NominatedNode(pod, node), ch)
	ch.Counted = append(ch.Counted, Counted{pod, node})
	return node
}

// countedNode is the node that the pod takes room on, as far as the scheduler's filters
// look. A pod that is done takes none, and neither does one that the scheduler refuses, or that
// was given up, and that has no slices. It takes room again once it is bound or
// has slices. One that is being placed, or that waits for its node, takes it already.
func (c *Cache) countedNode(pod *corev1.Pod) string {
	node := podstate.TargetNode(pod)
	if podstate.Ready(pod) {
		node = c.placing[pod.UID]
		if s, waits := c.staged[pod.UID]; node == "" && waits && slices.Contains(c.Index.Holders(pod.UID), s.node) {
			node = s.node
		}
	}
	lost := podstate.Unschedulable(pod) || c.givenUp[pod.UID] && podstate.Unbound(pod)
	if podstate.Terminal(pod) || lost && !slices.Contains(c.Index.Holders(pod.UID), node) {
		return ""
	}
	return node
}

// countOn has the filters count the pod on the node. An error means that their cache and its
// mirror differ, which only a defect of this program can cause.
func (c *Cache) countOn(pod *corev1.Pod, node string) (changed bool) {
	changed, err := c.filters.Count(pod, node)
	if err != nil {
		c.log.Error(err, "Cannot count a pod on its node", "pod", podstate.KeyOf(pod), "node", node)
	}
	return changed
}

// nominate has the filters keep room for the pod on a node, empty for none.
func (c *Cache) nominate(pod *corev1.Pod, node string, ch *Changes) {
	changed, err := c.filters.Nominate(pod, node)
	if err != nil {
		c.log.Error(err, "Cannot note a nominated pod", "pod", podstate.KeyOf(pod), "node", node)
	}
	if changed {
		ch.free(OnRefused)
	}
}

// Without calls do with the pod counted nowhere: on its node it would be in its own way.
// That is no change for others.
func (c *Cache) Without(pod *corev1.Pod, do func() error) error {
	c.recount(pod, "")
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if known := c.current(pod); known != nil {
			c.countOn(known, c.countedNode(known))
		}
	}()
	return do()
}

func (c *Cache) recount(pod *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countOn(pod, node)
}

// Assumption is pods that the filters count where a decision under way would have them.
// It is no change for others. It belongs to one goroutine.
type Assumption struct {
	cache *Cache
	pods  []*corev1.Pod
}

// Assumption is one without pods.
func (c *Cache) Assumption() *Assumption { return &Assumption{cache: c} }

// Count has the filters count the pod on the node, or on none, until End.
func (a *Assumption) Count(pod *corev1.Pod, node string) error {
	a.pods = append(a.pods, pod)
	_, err := a.cache.filters.Count(pod, node)
	return err
}

// Recount is Count for a pod that was counted before.
func (a *Assumption) Recount(pod *corev1.Pod, node string) error {
	_, err := a.cache.filters.Count(pod, node)
	return err
}

// End has the filters count the pods where they are in truth.
func (a *Assumption) End() {
	c := a.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pod := range a.pods {
		if known := c.current(pod); known != nil {
			c.countOn(known, c.countedNode(known))
		} else {
			c.countOn(pod, "")
		}
	}
	a.pods = nil
}
