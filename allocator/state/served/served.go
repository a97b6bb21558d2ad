// SPDX-License-Identifier: Apache-2.0

// Package served owns the watches of objects that a cluster may serve or not, such as those of a
// CRD. The resources that the API server serves are discovered while it runs: a CRD may come and go.
//
// It keeps no object: it hands on what it sees.
package served

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Rediscover is how often the API server is asked what it serves: two small
// requests for each resource. A CRD that is installed late is found within that.
const Rediscover = 15 * time.Second

// State is what is known of a resource's objects.
type State int

const (
	// Unread are objects that are served, as far as is known, and were not read yet.
	Unread State = iota
	// Absent are objects that are not served.
	Absent
	// Read are all that there are, and what changes.
	Read
)

// Resource is what is watched of an API.
type Resource struct {
	Group, Name string
	// Version is the only one that is read; empty for the server's preferred one, or another.
	Version string
	// Trim is what is kept of an object and handed on. An error of it ends the watch.
	Trim func(*unstructured.Unstructured) (metav1.Object, error)
	// Put and Drop are called with each object that is there or gone, in turn. State is called with what is
	// known of all, also where that is what it was.
	Put, Drop func(metav1.Object)
	State     func(State)
}

// Watcher follows resources wherever they are served.
type Watcher struct {
	// Discovery is any client of the API server; its base path is not used.
	Discovery rest.Interface
	Dynamic   dynamic.Interface
	Clock     clock.WithTicker
	Log       logr.Logger
	Resources []Resource
}

// Run follows them until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	tick := w.Clock.NewTicker(Rediscover)
	defer tick.Stop()
	follows := make([]follow, len(w.Resources))
	defer func() {
		for i := range follows {
			follows[i].end()
		}
	}()
	for {
		for i, r := range w.Resources {
			if err := w.discover(ctx, r, &follows[i]); err != nil && ctx.Err() == nil {
				w.Log.Error(err, "Cannot find out what is served; trying again", "group", r.Group, "resource", r.Name)
			}
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

// follow is the watch of one resource, while there is one.
type follow struct {
	version string
	stop    context.CancelFunc
	done    sync.WaitGroup
}

func (f *follow) end() {
	if f.stop != nil {
		f.stop()
		f.done.Wait()
		f.stop, f.version = nil, ""
	}
}

// discover starts or ends the watch, as the resource is served or not.
func (w *Watcher) discover(ctx context.Context, r Resource, f *follow) error {
	version, err := w.version(ctx, r)
	if err != nil || version != "" && version == f.version {
		return err
	}
	f.end()
	if version == "" {
		r.State(Absent)
		return nil
	}
	r.State(Unread)
	inner, stop := context.WithCancel(ctx)
	f.version, f.stop = version, stop
	f.done.Go(func() { w.follow(inner, r, version) })
	return nil
}

// version is the version that the resource is served in, the server's preferred one if in several;
// empty when in none.
func (w *Watcher) version(ctx context.Context, r Resource) (string, error) {
	list := &metav1.APIGroup{}
	if found, err := w.get(ctx, list, "/apis", r.Group); !found {
		return "", err
	}
	versions := []string{list.PreferredVersion.Version}
	for _, v := range list.Versions {
		versions = append(versions, v.Version)
	}
	for _, v := range versions {
		if r.Version != "" && v != r.Version {
			continue
		}
		resources := &metav1.APIResourceList{}
		_, err := w.get(ctx, resources, "/apis", r.Group, v)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(resources.APIResources, func(of metav1.APIResource) bool { return of.Name == r.Name }) {
			return v, nil
		}
	}
	return "", nil
}

// get reads a document of the API server's discovery; not found is no error.
func (w *Watcher) get(ctx context.Context, into any, path ...string) (found bool, err error) {
	body, err := w.Discovery.Get().AbsPath(path...).SetHeader("Accept", "application/json").DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("asking for what the API server serves of %v: %w", path, err)
	}
	return true, json.Unmarshal(body, into)
}

// follow watches the objects until ctx ends.
func (w *Watcher) follow(ctx context.Context, r Resource, version string) {
	informer := dynamicinformer.NewFilteredDynamicInformer(w.Dynamic, schema.GroupVersionResource{Group: r.Group, Version: version, Resource: r.Name},
		metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	handled, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.Put(obj.(metav1.Object)) },
		UpdateFunc: func(_, obj any) { r.Put(obj.(metav1.Object)) },
		DeleteFunc: func(obj any) {
			if missed, is := obj.(cache.DeletedFinalStateUnknown); is {
				obj = missed.Obj
			}
			r.Drop(obj.(metav1.Object))
		},
	})
	if err == nil {
		err = informer.SetTransform(func(obj any) (any, error) {
			if u, is := obj.(*unstructured.Unstructured); is {
				return r.Trim(u)
			}
			return obj, nil
		})
	}
	if err != nil {
		w.Log.Error(err, "Cannot watch", "group", r.Group, "resource", r.Name)
		return
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		r.State(Read)
	}
	running.Wait()
}
