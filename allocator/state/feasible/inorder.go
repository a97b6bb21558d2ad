// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"
)

// inOrder is a factory whose informers tell their handlers of a change one after the
// other, in the order in which these were added. Those of client-go give each handler a
// goroutine of its own and keep no order between them, and change what their listers show
// before any of them runs. But the plugins know volumes and resource claims from handlers:
// who hears of a change, and then asks them, has to hear of it after them.
//
// Handlers are added before the factory is started.
type inOrder struct {
	informers.SharedInformerFactory
	informers map[reflect.Type]*orderly
}

func newInOrder(factory informers.SharedInformerFactory) inOrder {
	return inOrder{factory, map[reflect.Type]*orderly{}}
}

func (f inOrder) Apps() apps.Interface         { return apps.New(f, metav1.NamespaceAll, nil) }
func (f inOrder) Core() core.Interface         { return core.New(f, metav1.NamespaceAll, nil) }
func (f inOrder) Policy() policy.Interface     { return policy.New(f, metav1.NamespaceAll, nil) }
func (f inOrder) Storage() storage.Interface   { return storage.New(f, metav1.NamespaceAll, nil) }
func (f inOrder) Resource() resource.Interface { return resource.New(f, metav1.NamespaceAll, nil) }

// InformerFor is how the groups above come to their informers. Of those that a plugin takes for
// scores alone, which nobody reads here, it gives one that is never started. A cluster has many of
// them, and tenants may write a MiB into each.
func (f inOrder) InformerFor(of runtime.Object, anew internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	switch of.(type) {
	case *corev1.Service, *corev1.ReplicationController, *appsv1.ReplicaSet, *appsv1.StatefulSet:
		return anew(nil, 0)
	}
	kind := reflect.TypeOf(of)
	if f.informers[kind] == nil {
		f.informers[kind] = &orderly{SharedIndexInformer: f.SharedInformerFactory.InformerFor(of, anew)}
	}
	return f.informers[kind]
}

// hasSynced reports whether all handlers know what there was when the factory was started.
func (f inOrder) hasSynced() bool {
	for _, i := range f.informers {
		if i.registration != nil && !i.registration.HasSynced() {
			return false
		}
	}
	return true
}

// orderly is an informer with one handler, which calls those that are added.
type orderly struct {
	cache.SharedIndexInformer
	handlers     []cache.ResourceEventHandler
	registration cache.ResourceEventHandlerRegistration
}

// AddEventHandler returns what stands for all handlers: what one of them knows they know
// all.
func (i *orderly) AddEventHandler(handler cache.ResourceEventHandler) (_ cache.ResourceEventHandlerRegistration, err error) {
	if i.registration == nil {
		i.registration, err = i.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(obj any, initial bool) {
				for _, h := range i.handlers {
					h.OnAdd(obj, initial)
				}
			},
			UpdateFunc: func(was, is any) {
				for _, h := range i.handlers {
					h.OnUpdate(was, is)
				}
			},
			DeleteFunc: func(obj any) {
				for _, h := range i.handlers {
					h.OnDelete(obj)
				}
			},
		})
	}
	i.handlers = append(i.handlers, handler)
	return i.registration, err
}
