// SPDX-License-Identifier: Apache-2.0

package podgroup

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

	"vernier.dev/vernier/api/podrequest"
)

// Rediscover is how often the API server is asked what it serves: two small
// requests for each API. A CRD that is installed late is found within that.
const Rediscover = 15 * time.Second

// resource is what both APIs that have objects call them.
const resource = "podgroups"

// Watcher keeps Sizes as the API server has them.
type Watcher struct {
	// Discovery is any client of the API server; its base path is not used.
	Discovery rest.Interface
	Dynamic   dynamic.Interface
	Clock     clock.WithTicker
	Log       logr.Logger
	Sizes     *Sizes
	// Changed is called when a group says something else than before, and AllChanged
	// when all groups of an API may.
	Changed    func(podrequest.Group)
	AllChanged func(podrequest.GroupAPI)
}

// Run follows PodGroups wherever they are served until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	tick := w.Clock.NewTicker(Rediscover)
	defer tick.Stop()
	follows := map[podrequest.GroupAPI]*follow{podrequest.Native: {}, podrequest.Coscheduling: {}}
	defer func() {
		for _, f := range follows {
			f.end()
		}
	}()
	for {
		for _, api := range []podrequest.GroupAPI{podrequest.Native, podrequest.Coscheduling} {
			if err := w.discover(ctx, api, follows[api]); err != nil && ctx.Err() == nil {
				w.Log.Error(err, "Cannot find out whether PodGroups are served; trying again", "group", api)
			}
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

// follow is the watch of one API's groups, while there is one.
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

// discover starts or ends the watch, as the API is served or not.
func (w *Watcher) discover(ctx context.Context, api podrequest.GroupAPI, f *follow) error {
	version, err := w.version(ctx, api)
	if err != nil || version != "" && version == f.version {
		return err
	}
	f.end()
	if version == "" {
		w.note(api, absent)
		return nil
	}
	w.note(api, unread)
	inner, stop := context.WithCancel(ctx)
	f.version, f.stop = version, stop
	f.done.Go(func() { w.follow(inner, api, version) })
	return nil
}

// note notes whether the API's groups have been read, and tells of a change.
func (w *Watcher) note(api podrequest.GroupAPI, now state) {
	if w.Sizes.set(api, now) {
		w.AllChanged(api)
	}
}

// version is the version that the API's groups are served in, the server's
// preferred one if in several; empty when in none.
func (w *Watcher) version(ctx context.Context, api podrequest.GroupAPI) (string, error) {
	list := &metav1.APIGroup{}
	if found, err := w.get(ctx, list, "/apis", string(api)); !found {
		return "", err
	}
	versions := []string{list.PreferredVersion.Version}
	for _, v := range list.Versions {
		versions = append(versions, v.Version)
	}
	for _, v := range versions {
		resources := &metav1.APIResourceList{}
		_, err := w.get(ctx, resources, "/apis", string(api), v)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
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

// follow watches the groups of an API until ctx ends.
func (w *Watcher) follow(ctx context.Context, api podrequest.GroupAPI, version string) {
	informer := dynamicinformer.NewFilteredDynamicInformer(w.Dynamic, schema.GroupVersionResource{Group: string(api), Version: version, Resource: resource},
		metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	put := func(obj any) { w.Changed(w.Sizes.put(api, obj.(*podGroup))) }
	handled, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, obj any) { put(obj) },
		DeleteFunc: func(obj any) {
			if missed, is := obj.(cache.DeletedFinalStateUnknown); is {
				obj = missed.Obj
			}
			n := nameOf(api, obj.(*podGroup))
			w.Sizes.drop(n)
			w.Changed(n)
		},
	})
	if err == nil {
		err = informer.SetTransform(trim(api))
	}
	if err != nil {
		w.Log.Error(err, "Cannot watch PodGroups", "group", api)
		return
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
		w.note(api, served)
	}
	running.Wait()
}

// podGroup is what the cache keeps of one. Whoever may write it, and a CRD without a schema, may
// have put a MiB of anything into it.
type podGroup struct {
	metav1.ObjectMeta
	size size
}

// trim leaves the name of a group, and what it says.
func trim(api podrequest.GroupAPI) cache.TransformFunc {
	return func(obj any) (any, error) {
		u, is := obj.(*unstructured.Unstructured)
		if !is {
			return obj, nil
		}
		return &podGroup{
			metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()},
			read(nameOf(api, u), u),
		}, nil
	}
}

func nameOf(api podrequest.GroupAPI, obj metav1.Object) podrequest.Group {
	return podrequest.Group{API: api, Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
