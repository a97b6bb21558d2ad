// SPDX-License-Identifier: Apache-2.0

// Package classes owns which GPUClasses there are, as the parts look them up: by name, without
// a lock and without an allocation.
//
// It never asks the API server anything.
package classes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Class is a GPUClass as it is looked up. It never changes.
type Class struct {
	Name     string
	Unit     api.GPUUnit
	Models   api.AllowList
	Mode     api.Mode
	Topology api.TopologyRequest
}

// Set is the classes that there are. Nil and the zero value have none.
type Set struct {
	now atomic.Pointer[map[string]*Class]
	// synced is set once Follow is under way.
	synced atomic.Pointer[cache.InformerSynced]

	mu  sync.Mutex
	all map[string]*api.GPUClass
}

// Of is the set of these classes.
func Of(list ...api.GPUClass) *Set {
	s := &Set{all: map[string]*api.GPUClass{}}
	for i := range list {
		s.all[list[i].Name] = &list[i]
	}
	s.publish()
	return s
}

// Get is the class of that name; nil without one.
func (s *Set) Get(name string) *Class {
	if s == nil {
		return nil
	}
	now := s.now.Load()
	if now == nil {
		return nil
	}
	return (*now)[name]
}

// All are the classes by name, as of now. Nobody may change the map.
func (s *Set) All() map[string]*Class {
	if s == nil || s.now.Load() == nil {
		return nil
	}
	return *s.now.Load()
}

// Put takes in a class.
func (s *Set) Put(class *api.GPUClass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*api.GPUClass{}
	}
	s.all[class.Name] = class
	s.publish()
}

// Delete takes out a class.
func (s *Set) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
	s.publish()
}

// publish has the oldest be looked up: a class that is made when there are enough already
// takes no other's place. What the API server would refuse is left out.
func (s *Set) publish() {
	oldest := make([]*api.GPUClass, 0, len(s.all))
	for _, class := range s.all {
		oldest = append(oldest, class)
	}
	slices.SortFunc(oldest, func(a, b *api.GPUClass) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	now := map[string]*Class{}
	for _, class := range oldest[:min(len(oldest), api.MaxGPUClasses)] {
		if c, err := read(class); err == nil {
			now[c.Name] = c
		}
	}
	s.now.Store(&now)
}

func read(class *api.GPUClass) (*Class, error) {
	models, err := api.ParseAllowList(strings.Join(class.Spec.Models, ","))
	if err != nil {
		return nil, err
	}
	topology, err := api.ParseTopology(class.Spec.Topology)
	if err != nil {
		return nil, err
	}
	mode, err := api.ParseMode(string(class.Spec.Mode))
	if unit := class.Spec.Unit; err == nil && (unit.Core < 1 || unit.Core > api.WholeGPU || unit.MemMiB < 0) {
		err = api.ErrRange
	}
	return &Class{Name: class.Name, Unit: class.Spec.Unit, Models: models, Mode: mode, Topology: topology}, err
}

// Follow keeps the set current from the cache's classes, and calls changed after each change.
func (s *Set) Follow(ctx context.Context, from ctrlcache.Cache, changed func()) error {
	informer, err := from.GetInformer(ctx, &api.GPUClass{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching GPU classes: %w; see that Vernier's CRDs are installed", err)
	}
	put := func(object any) {
		if class, ok := object.(*api.GPUClass); ok {
			s.Put(class)
			changed()
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: put,
		UpdateFunc: func(was, now any) {
			// A status matters to nobody here, and each change has waiting pods looked at again.
			before, ok1 := was.(*api.GPUClass)
			after, ok2 := now.(*api.GPUClass)
			if ok1 && ok2 && (before.UID != after.UID || !equality.Semantic.DeepEqual(before.Spec, after.Spec)) {
				put(after)
			}
		},
		DeleteFunc: func(last any) {
			if missed, ok := last.(cache.DeletedFinalStateUnknown); ok {
				last = missed.Obj
			}
			if class, ok := last.(*api.GPUClass); ok {
				s.Delete(class.Name)
				changed()
			}
		},
	})
	if err != nil {
		return err
	}
	synced := cache.InformerSynced(handler.HasSynced)
	s.synced.Store(&synced)
	return nil
}

// HasSynced reports whether Follow has taken in the classes that there were when it began.
func (s *Set) HasSynced() bool {
	synced := s.synced.Load()
	return synced != nil && (*synced)()
}
