// SPDX-License-Identifier: Apache-2.0

// Package cache owns what is known of the cluster: the pods that have to do with us, and the
// ledgers (package index). It knows which pods are placed at the moment and where, and where the
// scheduler's filters count each pod.
//
// It returns what an update changes and calls nobody; package eventhandlers fans that out.
// A decision reads it under an explicit "with these pods assumed" (Assumption, Without).
// A Cache may be used concurrently. Objects are kept: nobody may change them afterwards.
package cache

import (
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Filters are where the scheduler's filters count pods: *feasible.Filters.
type Filters interface {
	Count(pod *corev1.Pod, node string) (changed bool, err error)
	Nominate(pod *corev1.Pod, node string) (changed bool, err error)
	// Overcommitted reports whether the pods that are counted on a node ask for more of its GPUs than
	// it shows.
	Overcommitted(node string) bool
}

// Cache is what one replica knows.
type Cache struct {
	// Index is the ledgers. Others only read it, and draft grants in it.
	Index *index.Index
	// Priorities are what the priorities of pods count.
	Priorities priority.Classes
	filters    Filters
	// classes are the GPUClasses that there are; nil is none.
	classes *classes.Set
	log     logr.Logger

	mu sync.Mutex
	// pods are all pods of ours (podstate.Ours) by name, in the newest version known, byUID
	// the same by UID, and leaving those of them that end or have ended.
	pods    map[types.NamespacedName]*corev1.Pod
	byUID   map[types.UID]*corev1.Pod
	leaving map[types.UID]*corev1.Pod
	// strangers are pods with slices that are not known.
	strangers map[types.UID]bool
	// placing are the pods that are placed at the moment, each with the node that was
	// decided on, empty before that.
	placing map[types.UID]string
	// reservedFor are the pods that say which Workload's reserved room they take, and reservedForVersion
	// counts their changes.
	reservedFor        map[workload]map[types.UID]*corev1.Pod
	reservedForVersion int
	// deletedUnbound are pods that were deleted before they were bound, while they held
	// slices or were being placed: no node reports on their slices.
	deletedUnbound map[types.UID]bool
	// missingGrants are placed pods that the ledger of their node does not have, by node.
	missingGrants map[string]map[types.UID]types.NamespacedName
	// staged are gated pods that have their slices and wait for their node.
	staged map[types.UID]stage
	// givenUp are placed pods that were not bound in time.
	givenUp map[types.UID]bool
	// arrivals are pods that became ready and that Arrivals has not returned yet; collecting
	// is true once somebody wants them.
	arrivals   []*corev1.Pod
	collecting bool
}

// New is a cache that knows nothing yet.
func New(filters Filters, known *classes.Set, log logr.Logger) *Cache {
	return &Cache{
		Index:          index.New(),
		filters:        filters,
		classes:        known,
		log:            log,
		pods:           map[types.NamespacedName]*corev1.Pod{},
		byUID:          map[types.UID]*corev1.Pod{},
		leaving:        map[types.UID]*corev1.Pod{},
		strangers:      map[types.UID]bool{},
		placing:        map[types.UID]string{},
		deletedUnbound: map[types.UID]bool{},
		reservedFor:    map[workload]map[types.UID]*corev1.Pod{},
		missingGrants:  map[string]map[types.UID]types.NamespacedName{},
		staged:         map[types.UID]stage{},
		givenUp:        map[types.UID]bool{},
	}
}

// Scope says which unschedulable pods a change may help.
type Scope int

const (
	// OnRefused are pods for which there are devices, on nodes that the scheduler would
	// refuse.
	OnRefused Scope = iota + 1
	// OnAll are those and the pods for which there are no devices.
	OnAll
)

// Changes are what an update changes for others.
type Changes struct {
	// Gone are pods that are known no more.
	Gone []*corev1.Pod
	// Pod is a newer version of a pod that was taken in, Old the version before; nil for
	// none. Pods that have nothing to do with us are in here too, without an old version.
	Pod, Old *corev1.Pod
	// Counted are the pods whose node may have changed, in order.
	Counted []Counted
	// Ledgers are the nodes whose ledgers have to be reconciled.
	Ledgers []string
	// Freed says whether, and where, there may be room that was not there. 0 for no.
	Freed Scope
}

// Counted is a pod and the node that the filters count it on, empty for none.
type Counted struct {
	Pod  *corev1.Pod
	Node string
}

func (c *Changes) free(scope Scope) { c.Freed = max(c.Freed, scope) }

// Pod is the newest known version of a pod of ours, nil when there is none.
func (c *Cache) Pod(key types.NamespacedName) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[key]
}

// Current is the newest known version of this very pod, nil when it is gone.
func (c *Cache) Current(pod *corev1.Pod) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current(pod)
}

func (c *Cache) current(pod *corev1.Pod) *corev1.Pod {
	if known := c.pods[podstate.KeyOf(pod)]; known != nil && known.UID == pod.UID {
		return known
	}
	return nil
}

func (c *Cache) keep(pod *corev1.Pod) {
	c.pods[podstate.KeyOf(pod)], c.byUID[pod.UID] = pod, pod
	c.trackReservedFor(pod, true)
	delete(c.strangers, pod.UID)
	if delete(c.leaving, pod.UID); pod.DeletionTimestamp != nil || podstate.Terminal(pod) {
		c.leaving[pod.UID] = pod
	}
}

func (c *Cache) drop(pod *corev1.Pod) {
	delete(c.pods, podstate.KeyOf(pod))
	delete(c.byUID, pod.UID)
	c.trackReservedFor(pod, false)
	delete(c.leaving, pod.UID)
	c.trackStranger(pod.UID)
}

// Strangers are pods with slices that are not known, or not any more, as their UIDs, sorted: their
// slices are released in a moment.
func (c *Cache) Strangers() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.strangers))
}

// trackStranger notes whether the pod has slices and is not known.
func (c *Cache) trackStranger(uid types.UID) {
	if delete(c.strangers, uid); c.byUID[uid] == nil && len(c.Index.Holders(uid)) > 0 {
		c.strangers[uid] = true
	}
}

// PodOf is the newest known version of a pod of ours, nil when there is none.
func (c *Cache) PodOf(uid types.UID) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byUID[uid]
}

// HeldElsewhere reports whether a pod that is past our gate has slices on another node than its own.
func (c *Cache) HeldElsewhere(pod *corev1.Pod) bool {
	if podstate.Gated(pod) && !podstate.NeverRuns(pod) {
		return false
	}
	return slices.ContainsFunc(c.Index.Holders(pod.UID), func(node string) bool { return node != podstate.TargetNode(pod) })
}

// Leaving are the pods of ours that are being deleted or have ended, oldest first.
func (c *Cache) Leaving() []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return podstate.OldestFirst(c.leaving)
}

// Pods are all pods of ours, oldest first.
func (c *Cache) Pods() []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return podstate.OldestFirst(c.pods)
}

// Granted are the pods with slices in a ledger that are known, newest version.
func (c *Cache) Granted(ledger *v1alpha1.SliceLedger) map[types.UID]*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := map[types.UID]*corev1.Pod{}
	for uid, owner := range grants.Pods(ledger) {
		if pod := c.pods[podstate.OwnerKey(owner)]; pod != nil && pod.UID == uid {
			known[uid] = pod
		}
	}
	return known
}

// SetPod takes in a pod that the watch shows.
func (c *Cache) SetPod(pod *corev1.Pod) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.pods[podstate.KeyOf(pod)]; old != nil && old.UID != pod.UID {
		if podstate.Older(pod, old) {
			return ch
		}
		// Its deletion was missed, and with it how far the pod had come.
		c.forget(old, &ch)
	}
	c.set(pod, &ch)
	return ch
}

// SetWritten takes in a pod that a write or a live read returned. A pod whose deletion was
// seen in between stays forgotten.
func (c *Cache) SetWritten(pod *corev1.Pod) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current(pod) != nil {
		c.set(pod, &ch)
	}
	return ch
}

func (c *Cache) set(pod *corev1.Pod, ch *Changes) {
	key := podstate.KeyOf(pod)
	old := c.pods[key]
	if old != nil && podstate.Older(pod, old) {
		return
	} else if old != nil && old.ResourceVersion == pod.ResourceVersion {
		// The watch shows what a write has answered; its copy is the smaller one.
		c.keep(pod)
		return
	}
	ch.Pod, ch.Old = pod, old
	if !podstate.Ours(pod) {
		c.drop(pod)
		c.count(pod, ch)
		return
	}
	if c.collecting && podstate.Ready(pod) && (old == nil || !podstate.Arrived(old)) {
		c.arrivals = append(c.arrivals, pod)
	}
	c.keep(pod)
	c.track(pod, ch)
	resized := old != nil && !podrequest.SameResize(old, pod)
	if node := podstate.TargetNode(pod); resized || len(c.missingGrants[node]) > 0 {
		ch.Ledgers = append(ch.Ledgers, node)
	}
}

// DeletePod takes out a pod. last is its state at the deletion when exact, else some earlier
// one.
func (c *Cache) DeletePod(last *corev1.Pod, exact bool) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if exact && last.Spec.NodeName == "" {
		holders := c.Index.Holders(last.UID)
		if _, placing := c.placing[last.UID]; placing || len(holders) > 0 {
			c.deletedUnbound[last.UID] = true
		}
		ch.Ledgers = append(ch.Ledgers, holders...)
	}
	c.forget(last, &ch)
	return ch
}

func (c *Cache) forget(pod *corev1.Pod, ch *Changes) {
	if c.countOn(pod, "") {
		ch.free(OnRefused)
	}
	c.nominate(pod, "", ch)
	c.untrack(pod.UID, ch)
	delete(c.staged, pod.UID)
	delete(c.givenUp, pod.UID)
	if c.current(pod) != nil {
		c.drop(pod)
	}
	ch.Gone = append(ch.Gone, pod)
}

// DeletedUnbound reports whether the pod was deleted before it was bound: it never ran.
func (c *Cache) DeletedUnbound(pod types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deletedUnbound[pod]
}

// forgetUnbound drops the note about a deleted pod once no ledger holds it.
func (c *Cache) forgetUnbound(pod types.UID) {
	if _, placing := c.placing[pod]; !placing && len(c.Index.Holders(pod)) == 0 {
		delete(c.deletedUnbound, pod)
	}
}

// SetLedger takes in a ledger that the watch shows or a write returned.
func (c *Cache) SetLedger(ledger *v1alpha1.SliceLedger) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.Index.Ledger(ledger.Name)
	roomy := c.Index.Put(ledger)
	if c.Index.Ledger(ledger.Name) != ledger {
		return ch // the watch shows what a write has answered, or what was before it
	}
	ch.Ledgers = []string{ledger.Name}
	c.trackLedger(before, ledger.Name, &ch)
	for uid := range c.deletedUnbound {
		c.forgetUnbound(uid)
	}
	if roomy {
		ch.free(OnAll)
	}
	return ch
}

// DeleteLedger takes out a ledger.
func (c *Cache) DeleteLedger(ledger *v1alpha1.SliceLedger) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.Index.Ledger(ledger.Name)
	c.Index.Delete(ledger)
	c.trackLedger(before, ledger.Name, &ch)
	return ch
}

// DropDraft takes back what was drafted on a version of a ledger.
func (c *Cache) DropDraft(known *v1alpha1.SliceLedger) (ch Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Index.Drop(known) {
		ch.free(OnAll)
	}
	return ch
}

// EverArrived are all pods that are Ready or were, oldest first. From now on Arrivals are
// collected.
func (c *Cache) EverArrived() []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collecting, c.arrivals = true, nil
	return slices.DeleteFunc(podstate.OldestFirst(c.pods), func(p *corev1.Pod) bool { return !podstate.Arrived(p) })
}

// Arrivals are the pods that became Ready since the last call, or since EverArrived.
func (c *Cache) Arrivals() []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	pods := c.arrivals
	c.arrivals = nil
	return pods
}

// StopArrivals ends what EverArrived began.
func (c *Cache) StopArrivals() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collecting, c.arrivals = false, nil
}
