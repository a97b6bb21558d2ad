// SPDX-License-Identifier: Apache-2.0

// Package start owns the amounts that a new pod starts with, where its namespace or the pod itself
// asks for the advised ones.
//
// It never asks the API server anything: advice comes from a watch. Without advice, or before it is
// known, pods start with all that they request.
package start

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/slim"
)

// Advice is what there is. The zero value has none, and nil neither.
type Advice struct{ all sync.Map } // of api.SliceAdviceStatus, by types.NamespacedName

// Slim has the cache keep what is read of a SliceAdvice.
func Slim(object any) (any, error) {
	if o, ok := object.(*api.SliceAdvice); ok {
		s := &o.Status
		return &api.SliceAdvice{
			ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion},
			Status: api.SliceAdviceStatus{Workload: s.Workload, Container: s.Container, Initial: s.Initial, Request: s.Request, Advice: s.Advice,
				Confidence: s.Confidence, Pods: s.Pods, Days: s.Days, Mem: s.Mem},
		}, nil
	}
	return object, nil
}

// Put takes in an object.
func (a *Advice) Put(o *api.SliceAdvice) {
	a.all.Store(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.Status)
}

// Follow keeps the advice current from the cache's objects until ctx ends.
func (a *Advice) Follow(ctx context.Context, from ctrlcache.Cache) error {
	informer, err := from.GetInformer(ctx, &api.SliceAdvice{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching advice: %w; see that Vernier's CRDs are installed", err)
	}
	put := func(object any) {
		if o, ok := object.(*api.SliceAdvice); ok {
			a.Put(o)
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, now any) { put(now) },
		DeleteFunc: func(object any) {
			if key, err := cache.DeletionHandlingObjectToName(object); err == nil {
				a.all.Delete(types.NamespacedName(key))
			}
		},
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Of is the document of AnnotationStart for a pod that requests this; empty where it starts with all of
// it. That is so too where a gate of others or Kueue may have counted what it requests.
func (a *Advice) Of(namespace string, pod *slim.Pod, request *podrequest.Request, least demand.Minimum) (string, error) {
	meta := pod.Metadata
	if a == nil || counted(pod) || request.Mode != api.ModeAuto && request.Mode != api.ModeLimiter {
		return "", nil
	}
	workload := advice.Workload(&metav1.ObjectMeta{Name: meta.Name, Labels: meta.Labels, OwnerReferences: meta.OwnerReferences})
	starts := api.Resize{}
	for name, share := range request.Shares {
		found, has := a.all.Load(types.NamespacedName{Namespace: namespace, Name: advice.ObjectName(workload, name)})
		if !has {
			continue
		}
		s := found.(api.SliceAdviceStatus)
		wanted := request.Wishes.Advice == api.AdviceInitial || request.Wishes.Advice == "" && s.Initial
		if !wanted || s.Workload != workload || s.Container != name {
			continue
		}
		if to, less := shrink(share, &s, least); less {
			starts[name] = to
		}
	}
	if len(starts) == 0 {
		return "", nil
	}
	text, err := json.Marshal(starts)
	return string(text), err
}

// counted reports whether somebody else may have counted the pod's requests.
func counted(pod *slim.Pod) bool {
	for _, g := range pod.Spec.SchedulingGates {
		if g != (corev1.PodSchedulingGate{Name: api.Gate}) {
			return true
		}
	}
	return podrequest.CountedElsewhere(pod.Metadata.Labels)
}

// shrink is with how much of its share a container starts; false where that is all of it. Memory in
// percent stays: how much that is, shows when the GPU is chosen.
func shrink(share api.Share, s *api.SliceAdviceStatus, least demand.Minimum) (to api.ResizeTo, less bool) {
	if s.Confidence != api.ConfidenceHigh || s.Days < advice.HighDays || s.Pods < advice.HighPods || share.Whole() || s.Advice.MemMiB < 1 {
		return to, false
	}
	if s.Advice.Core < share.Core {
		to.Core = max(s.Advice.Core, 1)
	}
	floor := api.MiB(math.Ceil(float64(s.Mem.PeakMiB) * advice.MemHeadroom))
	if mem := max(s.Advice.MemMiB, floor); mem < share.MemMiB {
		to.MemMiB = mem
	}
	return to, to != (api.ResizeTo{}) && len(least.Check(to.From(share), nil)) == 0
}
