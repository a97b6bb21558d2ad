// SPDX-License-Identifier: Apache-2.0

// Package advice owns the SliceAdvice objects: what all nodes have published of a workload's container, merged,
// with the advice that follows. Nothing of a decision depends on it.
//
// A node's entry is added again at each look until it has ended for settled. Then it is part of the
// object's checkpoint, in the same write that moves the checkpoint's time past it. So no entry
// counts twice, whatever is restarted. An ended entry that is published later than that is lost. The
// entries of a SliceUsage that is deleted go to the checkpoints if a leader sees it and its next write
// succeeds. The node agent begins new ones then.
package advice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// turns is in how many parts the workloads are looked at, one part every turn. So each is looked
	// at once in 15 minutes.
	turns = 15
	turn  = time.Minute
	// settled is for how long an entry has ended when it is final. Nodes publish every 15 minutes.
	settled = 2 * time.Hour
	// kept is how long a workload may not be seen.
	kept = 14 * 24 * time.Hour
	// refresh is how old the figures may get of a workload whose advice and use do not change.
	refresh = time.Hour
	// ahead is how far a node's clock may be ahead.
	ahead = time.Hour
	// most bounds the objects of a namespace.
	most = 1000
	// maxReason bounds a reason, as the definition does.
	maxReason = 256
)

// Keeper writes the objects while the replica leads.
type Keeper struct {
	// Client writes. It must not cache.
	Client client.Client
	// Cache has the SliceUsages and the SliceAdvices.
	Cache ctrlcache.Cache
	// Namespace returns a namespace that there is.
	Namespace func(name string) (*corev1.Namespace, error)
	Clock     clock.WithTicker
	Log       logr.Logger

	turn int

	mu sync.Mutex
	// gone are the entries of deleted SliceUsages that are in no checkpoint yet.
	gone map[key][]v1alpha1.ContainerUse
}

// key is what an object is of.
type key struct{ namespace, workload, container string }

func keyOf(e *v1alpha1.ContainerUse) key { return key{e.Namespace, e.Workload, e.Container} }

func (k key) turn() int {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(k.namespace + "/" + k.workload + "/" + k.container)) // which never fails
	return int(sum.Sum32() % turns)
}

// Slim has the cache keep of a SliceUsage what is merged.
func Slim(object any) (any, error) {
	if u, ok := object.(*v1alpha1.SliceUsage); ok {
		u.ManagedFields = nil
		u.Status = v1alpha1.SliceUsageStatus{Containers: u.Status.Containers}
	}
	return object, nil
}

// Lead keeps the objects current until ctx ends. The cache is filled from here on only: a standby
// needs none of it.
func (k *Keeper) Lead(ctx context.Context) error {
	usages, err := k.Cache.GetInformer(ctx, &v1alpha1.SliceUsage{})
	if err == nil {
		_, err = k.Cache.GetInformer(ctx, &v1alpha1.SliceAdvice{})
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		// Without advice the replica decides all the same.
		k.Log.Error(err, "Cannot watch what nodes publish; there will be no advice. See that Vernier's CRDs are installed")
		return nil
	}
	handler, err := usages.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: k.deleted})
	if err != nil {
		return err
	}
	defer func() { _ = usages.RemoveEventHandler(handler) }()
	defer freeableGPUs.Set(0)
	defer freeableMemory.Set(0)
	ticker := k.Clock.NewTicker(turn)
	defer ticker.Stop()
	for {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.Log.Error(err, "Cannot keep advice; it is tried again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// deleted takes in what a deleted SliceUsage had.
func (k *Keeper) deleted(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	u, ok := object.(*v1alpha1.SliceUsage)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone == nil {
		k.gone = map[key][]v1alpha1.ContainerUse{}
	}
	for _, e := range u.Status.Containers {
		k.gone[keyOf(&e)] = append(k.gone[keyOf(&e)], e)
	}
}

// merging is one object, and what is to be merged into it.
type merging struct {
	key
	has        *v1alpha1.SliceAdvice
	live, gone []v1alpha1.ContainerUse
}

// look looks at the workloads whose turn it is.
func (k *Keeper) look(ctx context.Context) error {
	now := k.turn
	k.turn = (k.turn + 1) % turns
	usages, objects := &v1alpha1.SliceUsageList{}, &v1alpha1.SliceAdviceList{}
	if err := errors.Join(k.Cache.List(ctx, usages, client.UnsafeDisableDeepCopy), k.Cache.List(ctx, objects, client.UnsafeDisableDeepCopy)); err != nil {
		return err
	}
	all := map[key]*merging{}
	of := func(k key) *merging {
		if all[k] == nil {
			all[k] = &merging{key: k}
		}
		return all[k]
	}
	number := map[string]int{}
	var core int64
	var mem v1alpha1.MiB
	for i := range objects.Items {
		o := &objects.Items[i]
		number[o.Namespace]++
		freeCore, freeMem := advice.Freeable(&o.Status)
		core, mem = core+freeCore, mem+freeMem
		if k := (key{o.Namespace, o.Status.Workload, o.Status.Container}); k.turn() == now {
			of(k).has = o
		}
	}
	freeableGPUs.Set(float64(core) / float64(v1alpha1.WholeGPU))
	freeableMemory.Set(float64(mem.Bytes()))
	for i := range usages.Items {
		for _, e := range usages.Items[i].Status.Containers {
			if key := keyOf(&e); key.turn() == now {
				of(key).live = append(of(key).live, e)
			}
		}
	}
	k.mu.Lock()
	for key, entries := range k.gone {
		if key.turn() == now {
			of(key).gone = entries
		}
	}
	k.mu.Unlock()
	var errs []error
	for key, m := range all {
		if m.has == nil {
			if number[key.namespace] >= most {
				continue
			}
			number[key.namespace]++
		}
		// Once, even if it fails: a write of which the answer was lost would count them twice.
		if len(m.gone) > 0 {
			k.forget(key, len(m.gone))
		}
		if err := k.merge(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("SliceAdvice of %s of %s in namespace %s: %w", key.container, key.workload, key.namespace, err))
		}
	}
	return errors.Join(errs[:min(len(errs), 3)]...)
}

// forget drops the entries that are being merged. Further ones may have come behind them.
func (k *Keeper) forget(of key, merged int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone[of] = k.gone[of][merged:]; len(k.gone[of]) == 0 {
		delete(k.gone, of)
	}
}

// merge writes, makes or deletes one object, where that is due.
func (k *Keeper) merge(ctx context.Context, m *merging) error {
	now := k.Clock.Now()
	status := v1alpha1.SliceAdviceStatus{Workload: m.workload, Container: m.container}
	var ended, sum advice.Use
	if m.has != nil {
		status.CheckpointThrough = m.has.Status.CheckpointThrough
		// What cannot be read, nobody of ours has written.
		_ = json.Unmarshal([]byte(m.has.Status.Checkpoint), &ended)
	}
	through := status.CheckpointThrough
	folded := false
	var live []advice.Use
	var options advice.Options
	add := func(e *v1alpha1.ContainerUse, final bool) {
		var u advice.Use
		if json.Unmarshal([]byte(e.Use), &u) != nil || u.Last.After(now.Add(ahead)) || e.Ended != nil && !e.Ended.After(through.Time) {
			return
		}
		options.DeviceMem = max(options.DeviceMem, e.GPUMem)
		if !final {
			live = append(live, u)
			status.Slices = int32(min(int64(status.Slices)+int64(e.Slices), math.MaxInt32))
			return
		}
		ended.Merge(&u)
		folded = true
		if e.Ended != nil && e.Ended.After(status.CheckpointThrough.Time) {
			status.CheckpointThrough = *e.Ended
		}
	}
	for i := range m.live {
		e := &m.live[i]
		add(e, e.Ended != nil && now.Sub(e.Ended.Time) >= settled)
	}
	for i := range m.gone {
		add(&m.gone[i], true)
	}
	if ended.Samples > 0 {
		text, err := json.Marshal(&ended)
		if err != nil {
			return err
		}
		status.Checkpoint = string(text)
		sum.Merge(&ended)
	}
	for i := range live {
		sum.Merge(&live[i])
	}
	use, err := k.use(m.namespace)
	switch {
	case err != nil && m.has != nil:
		return nil // it goes with its namespace
	case err != nil || use == v1alpha1.AdviceOff || sum.Samples == 0 || now.Sub(sum.Last) > kept:
		if m.has == nil {
			return nil
		}
		return client.IgnoreNotFound(k.Client.Delete(ctx, m.has, client.Preconditions{UID: &m.has.UID}))
	}
	status.Initial = use == v1alpha1.AdviceInitial
	render(&status, &sum, options)
	return k.write(ctx, m, &status, folded)
}

// use is what becomes of advice in a namespace that there is.
func (k *Keeper) use(namespace string) (v1alpha1.AdviceUse, error) {
	n, err := k.Namespace(namespace)
	switch {
	case err != nil:
		return "", err
	case n.DeletionTimestamp != nil:
		return "", errors.New("the namespace is being deleted")
	case n.Labels[v1alpha1.LabelInject] != v1alpha1.LabelInjectEnabled:
		return v1alpha1.AdviceOff, nil
	}
	return podrequest.NamespaceAdvice(n.Annotations), nil
}

func (k *Keeper) write(ctx context.Context, m *merging, status *v1alpha1.SliceAdviceStatus, folded bool) error {
	if m.has == nil {
		o := &v1alpha1.SliceAdvice{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: advice.ObjectName(m.workload, m.container)}, Status: *status}
		// An object that the cache does not show yet is looked at the next time.
		if err := k.Client.Create(ctx, o); !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	}
	if !folded && !changed(&m.has.Status, status) {
		return nil
	}
	o := m.has.DeepCopy()
	o.Status = *status
	return k.Client.Update(ctx, o)
}

// changed reports whether a reader would see something new.
func changed(was, is *v1alpha1.SliceAdviceStatus) bool {
	return was.Initial != is.Initial || was.Slices != is.Slices || was.Request != is.Request || was.Advice != is.Advice || was.Confidence != is.Confidence ||
		was.Core != is.Core || was.Mem != is.Mem || was.ThrottledPercent != is.ThrottledPercent || was.Refusals != is.Refusals ||
		was.Pods != is.Pods || was.Days != is.Days || is.Through.Sub(was.Through.Time) >= refresh
}

// render writes what is known into a status.
func render(status *v1alpha1.SliceAdviceStatus, u *advice.Use, o advice.Options) {
	r, total := advice.Recommend(u, o), u.Total()
	status.Request = v1alpha1.GPUAmounts{Core: u.Request.Core, MemMiB: u.Request.Mem}
	status.Advice = v1alpha1.GPUAmounts{Core: r.Core, MemMiB: r.Mem}
	status.Confidence = v1alpha1.AdviceConfidence(r.Confidence)
	for _, text := range r.Reasons[:min(len(r.Reasons), 4)] {
		status.Reasons = append(status.Reasons, text[:min(len(text), maxReason)])
	}
	status.Core = v1alpha1.CoreUse{P50: u.Core.Quantile(0.5), P95: u.Core.Quantile(0.95), P99: u.Core.Quantile(0.99), Max: u.Core.Max()}
	status.Mem = v1alpha1.MemUse{P99MiB: u.Mem.Quantile(0.99), PeakMiB: total.Peak, NeedMiB: total.Need}
	status.ThrottledPercent = v1alpha1.Percent(math.Round(100 * total.ThrottledRatio()))
	status.Refusals, status.Samples, status.Pods, status.Days = total.Refusals, u.Samples, u.Pods, int32(len(u.Days))
	status.Since, status.Through = metav1.NewTime(u.Since), metav1.NewTime(u.Last)
}
