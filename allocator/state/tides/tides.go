// SPDX-License-Identifier: Apache-2.0

// Package tides owns the Tides that there are, as they were read, and returns what a node's ledger is
// to say of them.
//
// It writes nothing. Its answers follow from the tides, the node's labels, the ledger and the time.
package tides

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/tide"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// lookAgain bounds how long nothing is looked at: an end that is far ahead moves on.
	lookAgain = time.Hour
	// lookAgainAtClock is the same while the clock cannot be trusted.
	lookAgainAtClock = servertime.MaxSkew
)

// Set is the tides that there are. It may be used concurrently.
type Set struct {
	// Labels returns a node's labels; false where the node is not known.
	Labels func(node string) (map[string]string, bool)
	// Now reads the clocks.
	Now func() servertime.Reading

	mu    sync.RWMutex
	tides map[string]*tide.Tide
}

// Put takes in a tide. One that cannot be read lends nothing on its nodes.
func (s *Set) Put(t *v1alpha1.Tide) {
	read, _ := tide.Read(t) // its status has the error
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tides == nil {
		s.tides = map[string]*tide.Tide{}
	}
	s.tides[t.Name] = read
}

// Delete takes out a tide.
func (s *Set) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tides, name)
}

// selecting are the tides that select a node of these labels, by name.
func (s *Set) selecting(labels map[string]string) (all []*tide.Tide) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.tides {
		if t.Selects(labels) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *tide.Tide) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Next returns what a node's ledger is to say of tides, and whether that is to be written. It is to be
// looked at again after a time, zero for never. By a clock that cannot be trusted nothing opens. A
// ledger keeps the end that it has then, and one without a tide has what is lent outside.
func (s *Set) Next(node string, has *v1alpha1.LedgerTide) (next *v1alpha1.LedgerTide, write bool, again time.Duration) {
	labels, known := s.Labels(node)
	if !known {
		return has, false, 0
	}
	all := s.selecting(labels)
	if len(all) == 0 {
		return nil, has != nil, 0
	}
	now := s.Now()
	next, change := tide.Effective(all, now.Now)
	if !now.Trusted() {
		next.TideAmounts, next.Until = next.Outside, nil
		return next, has == nil && follows(next, has, now.Now), lookAgainAtClock
	}
	again = lookAgain
	if !change.IsZero() {
		again = min(again, max(change.Sub(now.Now), time.Second))
	}
	return next, follows(next, has, now.Now), again
}

// follows sets since when next is in force after what the ledger has, and reports whether it is
// another. A window that has ended by itself is not written: the ledger has its end.
func follows(next, has *v1alpha1.LedgerTide, now time.Time) bool {
	next.Since = metav1.NewTime(now.UTC().Truncate(time.Second))
	if has == nil {
		return true
	}
	// Slices beyond what is allowed have their grace once, also where more is allowed before it is over.
	if core, mem := has.Allows(now); core <= next.Core && mem <= next.Mem {
		next.Since = metav1.NewTime(has.ChangedAt(now))
	}
	is := *has
	if !has.EndsAt().IsZero() && !now.Before(has.EndsAt()) {
		is.TideAmounts, is.Since, is.Until = has.Outside, *has.Until, nil
	}
	return !equality.Semantic.DeepEqual(&is, next)
}

// Follow keeps the set current from the cache's tides, and calls changed after each change.
func (s *Set) Follow(ctx context.Context, from ctrlcache.Cache, changed func()) (synced cache.InformerSynced, err error) {
	informer, err := from.GetInformer(ctx, &v1alpha1.Tide{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching tides: %w; see that Vernier's CRDs are installed", err)
	}
	put := func(object any) {
		if t, ok := object.(*v1alpha1.Tide); ok {
			s.Put(t)
			changed()
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: put,
		UpdateFunc: func(was, now any) {
			// A status changes nothing here.
			if before, ok := was.(*v1alpha1.Tide); !ok || before.Generation != now.(*v1alpha1.Tide).Generation || before.UID != now.(*v1alpha1.Tide).UID {
				put(now)
			}
		},
		DeleteFunc: func(last any) {
			if missed, ok := last.(cache.DeletedFinalStateUnknown); ok {
				last = missed.Obj
			}
			if t, ok := last.(*v1alpha1.Tide); ok {
				s.Delete(t.Name)
				changed()
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return handler.HasSynced, nil
}
