// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"
)

// known are the volumes and claims as the plugins know them, or knew them a moment ago: a
// lister may be ahead of them (inOrder). It is asked what they know of a pod's volumes
// before they are asked about the next pod.
type known struct{ volumes, claims, deviceClaims cache.Store }

// watchKnown is called when the plugins have added their handlers.
func watchKnown(factory inOrder) (known, error) {
	var failed error
	store := func(informer cache.SharedIndexInformer) cache.Store {
		s := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
		// A store fails where its key function does, which it does for no object.
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { _ = s.Add(obj) },
			UpdateFunc: func(_, obj any) { _ = s.Update(obj) },
			DeleteFunc: func(obj any) { _ = s.Delete(obj) },
		})
		if err != nil {
			failed = err
		}
		return s
	}
	core := factory.Core().V1()
	return known{
		volumes: store(core.PersistentVolumes().Informer()), claims: store(core.PersistentVolumeClaims().Informer()),
		deviceClaims: store(factory.Resource().V1().ResourceClaims().Informer()),
	}, failed
}

// The three are nil where there is no such object.

func (k known) volume(name string) *corev1.PersistentVolume {
	return get[corev1.PersistentVolume](k.volumes, name)
}

func (k known) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return get[corev1.PersistentVolumeClaim](k.claims, namespace+"/"+name)
}

func (k known) devices(namespace, name string) *resourcev1.ResourceClaim {
	return get[resourcev1.ResourceClaim](k.deviceClaims, namespace+"/"+name)
}

func get[T any](store cache.Store, key string) *T {
	found, _, _ := store.GetByKey(key)
	object, _ := found.(*T)
	return object
}
