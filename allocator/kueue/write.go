// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// writers is how many verdicts are written at a time.
	writers = 4
	// maxMessage bounds the message of a verdict, in bytes.
	maxMessage = 1024
)

// verdict is what is said of a Workload. reserved: its pods are to name the reservation.
type verdict struct {
	uid            types.UID
	state, message string
	reserved       bool
}

// task is something to write: the verdict on a Workload, its pause, or the condition of an AdmissionCheck.
type task struct {
	workload types.NamespacedName
	pause    bool
	check    string
}

// writes is what is to be written. Due is nil while another replica leads, and the queue until Write runs.
type writes struct {
	mu    sync.Mutex
	due   map[task]bool
	queue workqueue.TypedRateLimitingInterface[task]
}

func (k *Workloads) write(t task) {
	k.writes.mu.Lock()
	defer k.writes.mu.Unlock()
	if k.writes.queue != nil {
		k.writes.queue.Add(t)
	} else if k.writes.due != nil {
		k.writes.due[t] = true
	}
}

// say has a verdict written. A Workload that waits for pods to end is told once.
func (k *Workloads) say(w *workload, v verdict) {
	if v.uid = w.UID; len(v.message) > maxMessage {
		v.message = v.message[:maxMessage]
	}
	if !v.reserved {
		k.unreserve(w.key())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	told := !slices.ContainsFunc(w.Status.AdmissionChecks, func(c checkState) bool {
		return k.checks[c.Name] != nil && (c.State != v.state || c.Message != v.message)
	})
	if !told {
		k.verdicts[w.key()] = v
		k.write(task{workload: w.key()})
	}
}

// Open has verdicts taken in that are to be written: this replica leads now.
func (k *Workloads) Open() {
	k.writes.mu.Lock()
	k.writes.due = map[task]bool{}
	k.writes.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.verdicts)
	for name := range k.checks {
		k.write(task{check: name})
	}
}

// Close ends what Open began.
func (k *Workloads) Close() {
	k.writes.mu.Lock()
	defer k.writes.mu.Unlock()
	k.writes.due = nil
}

// Write writes verdicts after Open, until ctx ends.
func (k *Workloads) Write(ctx context.Context) {
	q := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[task](queue.FirstRetry, queue.LastRetry), workqueue.TypedRateLimitingQueueConfig[task]{Clock: k.Clock})
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	k.writes.mu.Lock()
	k.writes.queue = q
	for t := range k.writes.due {
		q.Add(t)
	}
	k.writes.mu.Unlock()
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for k.writeNext(ctx, q) {
			}
		})
	}
	running.Wait()
	k.writes.mu.Lock()
	k.writes.queue = nil
	k.writes.mu.Unlock()
}

func (k *Workloads) writeNext(ctx context.Context, q workqueue.TypedRateLimitingInterface[task]) bool {
	t, ended := q.Get()
	if ended {
		return false
	}
	defer q.Done(t)
	if err := k.do(ctx, t); err != nil && ctx.Err() == nil {
		k.Log.Error(err, "Cannot write for Kueue; trying again", "workload", t.workload, "check", t.check)
		q.AddRateLimited(t)
	} else {
		q.Forget(t)
	}
	return true
}

// Flush writes once what is to be written now, where Write does not run.
func (k *Workloads) Flush(ctx context.Context) (err error) {
	for len(k.writes.due) > 0 {
		for t := range k.writes.due {
			delete(k.writes.due, t)
			err = errors.Join(err, k.do(ctx, t))
		}
	}
	return err
}

func (k *Workloads) do(ctx context.Context, t task) error {
	switch {
	case t.check != "":
		return k.writeCheck(ctx, t.check)
	case t.pause:
		return k.writePause(ctx, t.workload)
	default:
		return k.writeVerdict(ctx, t.workload)
	}
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// writeVerdict writes the verdict into each check of ours, if these are still as they were judged. If not,
// the Workload is looked at again.
func (k *Workloads) writeVerdict(ctx context.Context, key types.NamespacedName) error {
	k.mu.Lock()
	v, is := k.verdicts[key]
	w := k.known[key]
	if !is || w == nil || w.UID != v.uid || !w.holdsQuota() {
		delete(k.verdicts, key)
		k.mu.Unlock()
		return nil
	}
	k.why[key] = v.message
	if v.state != retry {
		delete(k.why, key)
	}
	patch := k.patch(w, func(c checkState) (checkState, bool) { return k.stateOf(w, c, v), true })
	k.mu.Unlock()
	written, err := k.send(ctx, key, patch)
	if err != nil {
		return err
	}
	k.mu.Lock()
	delete(k.verdicts, key)
	k.mu.Unlock()
	if written == nil {
		k.Queue.AddAfter(itemOf(key), queue.RefusedDelay)
		return nil
	}
	k.put(written)
	return nil
}

// patch changes the checks of ours as change says, if they are as they were. The caller holds mu.
func (k *Workloads) patch(w *workload, change func(checkState) (checkState, bool)) []operation {
	var patch []operation
	for i, c := range w.Status.AdmissionChecks {
		if next, is := change(c); is && k.checks[c.Name] != nil {
			at := fmt.Sprintf("/status/admissionChecks/%d", i)
			patch = append(patch, operation{"test", at + "/name", c.Name}, operation{"test", at + "/state", c.State}, operation{"replace", at, next})
		}
	}
	return append([]operation{{"test", "/metadata/uid", string(w.UID)}}, patch...)
}

// send returns the Workload as it was written, nil where it is not as it was.
func (k *Workloads) send(ctx context.Context, key types.NamespacedName, patch []operation) (*workload, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	u := object("Workload", key)
	err = k.Client.Status().Patch(ctx, u, client.RawPatch(types.JSONPatchType, body))
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		k.Log.V(1).Info("A Workload is not as it was judged", "workload", key, "err", err)
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return workloadOf(u)
}

// stateOf is the check with the verdict.
func (k *Workloads) stateOf(w *workload, was checkState, v verdict) checkState {
	c := checkState{Name: was.Name, State: v.state, Message: v.message, LastTransitionTime: was.LastTransitionTime, RetryCount: was.RetryCount}
	if was.State != v.state {
		c.LastTransitionTime = metav1.NewTime(k.Clock.Now())
	}
	if v.reserved {
		for _, set := range w.Spec.PodSets {
			c.PodSetUpdates = append(c.PodSetUpdates, podSetUpdate{set.Name, map[string]string{v1alpha1.AnnotationReservedFor: string(w.UID)}})
		}
	}
	return c
}

// writeCheck writes the condition Active of an AdmissionCheck of ours.
func (k *Workloads) writeCheck(ctx context.Context, name string) error {
	k.mu.Lock()
	c := k.checks[name]
	k.mu.Unlock()
	if c == nil {
		return nil
	}
	active := metav1.Condition{Type: "Active", Status: metav1.ConditionTrue, Reason: "Active", Message: "Vernier's allocator decides", ObservedGeneration: c.Generation}
	if c.Spec.Parameters != nil {
		active.Status, active.Reason, active.Message = metav1.ConditionFalse, "BadParameters", "spec.parameters: the check takes none: remove them"
	}
	conditions := slices.Clone(c.Status.Conditions)
	if !meta.SetStatusCondition(&conditions, active) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": c.ResourceVersion}, "status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	err = k.Client.Status().Patch(ctx, object("AdmissionCheck", types.NamespacedName{Name: name}), client.RawPatch(types.MergePatchType, body))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the watch shows it
	}
	return err
}

func object(kind string, key types.NamespacedName) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: Group, Version: Version, Kind: kind})
	u.SetNamespace(key.Namespace)
	u.SetName(key.Name)
	return u
}
