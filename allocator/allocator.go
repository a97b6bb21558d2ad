// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/agents"
	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/ranking"
)

// Config is what an allocator works with.
type Config struct {
	// Client writes ledgers and pods and reads them live. It must not cache.
	Client  client.Client
	Filters *feasible.Filters
	Events  record.EventRecorder
	Clock   clock.WithTicker
	Log     logr.Logger
	// Groups says how many pods of a gang must start together.
	Groups *group.Sizes
	// Agents are the node agents' pods. Nil where agents do not run in pods: then only what
	// they say themselves is known of them.
	Agents *agents.Agents
	// Requests is how many may be under way at a time, 1 or more.
	Requests int
}

// Allocator is one replica. The Set and Delete methods feed it and may be called
// concurrently; Lead decides.
type Allocator struct {
	Config
	index *index.Index

	mu sync.Mutex
	// pods are those that have to do with us, by name, the newest version known.
	pods map[types.NamespacedName]*corev1.Pod
	// waiting are gated pods that fit nowhere, and why.
	waiting map[types.NamespacedName]waiter
	// heard is what waiting pods were told by the leader before, hearing is true until
	// that is known.
	heard   map[types.UID]string
	hearing bool
	// untold are pods that were placed meanwhile.
	untold []placedPod
	// wakes is how often wake was called.
	wakes int
	// woken are waiting pods that are to be looked at again, in the order of their turns.
	woken []call
	// scarce are the demands for which there are no devices just now.
	scarce scarcity
	// neverRan are pods that were deleted unbound while they held slices or were
	// being placed: their slices need no word from a node.
	neverRan map[types.UID]bool
	// placing are the pods of the round that is under way, each with the node that
	// was decided on, empty before that.
	placing map[types.UID]string
	// unbooked are placed pods that the ledger of their node does not have, by node.
	unbooked map[string]map[types.UID]types.NamespacedName
	// refusals are placed pods that the scheduler refuses.
	refusals map[types.UID]*refusal
	// preparations are gated pods that have their slices and wait for their node.
	preparations map[types.UID]preparation
	preemptions  preemptions
	gangs        gangs
	order        order
	// arrivals are pods whose turn has come and that the ranking has not learnt of.
	arrivals []*corev1.Pod
	// queue is nil while this replica does not lead.
	queue queue

	// ranking is the worker's alone. Nil until its first decision as the leader.
	ranking *ranking.Ranking
	// searches are those for places for gangs that go on, or are to begin again; searching is
	// the one that is under way, nil outside of it. All are the worker's.
	searches  map[group.Name]*search
	searching *search
	turns     turns
	// again is how often in a row something was looked at again at once; the worker's.
	again map[item]int
	// eventsFrom is when the API server is asked again to take an event; the worker's.
	eventsFrom time.Time
}

// New is an allocator that knows nothing yet.
func New(c Config) *Allocator {
	return &Allocator{
		Config:   c,
		index:    index.New(),
		pods:     map[types.NamespacedName]*corev1.Pod{},
		waiting:  map[types.NamespacedName]waiter{},
		placing:  map[types.UID]string{},
		neverRan: map[types.UID]bool{},
		unbooked: map[string]map[types.UID]types.NamespacedName{},
		refusals: map[types.UID]*refusal{},

		preparations: map[types.UID]preparation{},
		preemptions:  preemptions{inVain: map[types.UID]inVain{}, letGo: map[types.UID]bool{}, notBefore: map[kindred]time.Time{}},
		order:        newOrder(),
		gangs:        noGangs(),
	}
}

// pod is the newest known version of a pod of ours, nil when there is none.
func (a *Allocator) pod(key types.NamespacedName) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[key]
}
