// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// What users and the stock scheduler do in a world.

// createPod is a user with a random request.
func (w *world) createPod() {
	w.made++
	shares := map[string]v1alpha1.Share{}
	for _, c := range []string{"a", "b"}[:1+w.rand.Intn(2)] {
		shares[c] = v1alpha1.Share{
			GPUs: v1alpha1.DeviceCount(1 + w.rand.Intn(2)), Core: v1alpha1.Percent(w.rand.Intn(41)),
			MemMiB: v1alpha1.MiB(1 + w.rand.Intn(objects.DeviceMiB*4/10)),
		}
	}
	if w.gangsOnly {
		shares = map[string]v1alpha1.Share{"a": objects.Share(v1alpha1.Percent(50+w.rand.Intn(21)), 100)}
	}
	idle := w.idle && w.rand.Intn(2) == 0
	if idle {
		shares = map[string]v1alpha1.Share{"a": objects.IdleShare(v1alpha1.Percent(1+w.rand.Intn(60)), v1alpha1.MiB(1+w.rand.Intn(objects.DeviceMiB*6/10)))}
	}
	p := w.classed(objects.Pod(fmt.Sprintf("p%d", w.made), shares))
	p.UID, p.CreationTimestamp = types.UID(p.Name), metav1.NewTime(w.now())
	p.Finalizers = []string{"example.com/held"}
	if w.rand.Intn(2) == 0 {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: ptr.To(true)}}
	}
	p.Labels = map[string]string{"app": []string{"x", "y"}[w.rand.Intn(2)]}
	if w.rand.Intn(6) == 0 {
		objects.SpreadFrom(p)
	}
	p.Annotations[v1alpha1.AnnotationPolicy] = string([]v1alpha1.Policy{v1alpha1.PolicyPack, v1alpha1.PolicySpread}[w.rand.Intn(2)])
	if w.made%2 == 0 && shares["a"].GPUs == 1 && shares["b"].GPUs <= 1 {
		required(p)
	}
	if w.idle && !idle && w.made%3 == 0 {
		p.Annotations[v1alpha1.AnnotationQoS] = string(v1alpha1.QoSBurstable)
	}
	if idle {
		objects.Controlled(p)
	} else {
		w.enlist(p)
	}
	if w.priorities {
		w.prioritize(p)
	}
	w.create(p)
}

// now is the time by which pods are created and end.
func (w *world) now() time.Time {
	if w.real {
		return time.Now()
	}
	return w.clock.Now()
}

// deletePod is a user who deletes a pod, gated or bound, by force or not.
func (w *world) deletePod() {
	bound := w.rand.Intn(2) == 0
	p := w.somePod(func(p *corev1.Pod) bool {
		return p.DeletionTimestamp == nil && (w.calm || bound == (p.Spec.NodeName != ""))
	})
	switch {
	case p == nil:
	case w.rand.Intn(2) > 0:
		w.must(w.remove(p))
	default:
		if p.Spec.NodeName != "" && !podstate.Terminal(p) {
			n := w.node(p.Spec.NodeName)
			n.ghosts = append(n.ghosts, p)
		}
		w.vanish(p)
	}
}

// remove deletes a pod: it stays, marked, as long as something holds it.
func (w *world) remove(p *corev1.Pod, preconditions ...client.DeleteOption) error {
	if err := w.api.Delete(context.Background(), p, preconditions...); err != nil {
		return err
	}
	held := &corev1.Pod{}
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(p), held); apierrors.IsNotFound(err) {
		w.notify(p, true)
	} else {
		w.must(err)
		w.notify(held, false)
	}
	return nil
}

// evict ends a pod as the API server does where its budgets allow it.
func (w *world) evict(e *policyv1.Eviction) error {
	p := &corev1.Pod{}
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(e), p); err != nil {
		return err
	}
	if uid := e.DeleteOptions.Preconditions.UID; uid == nil || *uid != p.UID {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, p.Name, errors.New("precondition"))
	}
	var covering []*policyv1.PodDisruptionBudget
	for _, b := range w.budgets {
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && b.Namespace == p.Namespace && selector.Matches(labels.Set(p.Labels)) {
			covering = append(covering, b)
		}
	}
	switch {
	case len(covering) > 1 && !podrequest.OnIdle(p): // whose slices are taken back all the same
		w.fail("evicting pod %s, which several budgets cover", p.Name)
		fallthrough
	case len(covering) > 1:
		return apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget"))
	case len(covering) == 1 && covering[0].Status.DisruptionsAllowed < 1:
		return apierrors.NewTooManyRequests("the budget is used up", 10)
	case len(e.DeleteOptions.DryRun) > 0 || p.DeletionTimestamp != nil:
		return nil
	case len(covering) == 1:
		covering[0].Status.DisruptionsAllowed--
	}
	w.evicted = append(w.evicted, p.UID)
	for _, l := range w.ledgers {
		for _, d := range l.Spec.Devices {
			if slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == p.UID }) {
				w.wasOn[p.UID] = d.UUID
			}
		}
	}
	return w.remove(p)
}

// vanish takes a pod out, whatever holds it.
func (w *world) vanish(p *corev1.Pod) {
	if len(p.Finalizers) > 0 {
		p.Finalizers = nil
		w.must(w.api.Update(context.Background(), p))
	}
	w.must(client.IgnoreNotFound(w.api.Delete(context.Background(), p, client.GracePeriodSeconds(0))))
	w.notify(p, true)
}

// free is whoever held a pod that was deleted before it was bound.
func (w *world) free() {
	if p := w.somePod(podstate.NeverRuns); p != nil {
		w.vanish(p)
	}
}

// bind is the stock scheduler that comes to some ungated pod.
func (w *world) bind() {
	if p := w.somePod(unbound); p != nil {
		w.schedule(p)
	}
}

func unbound(p *corev1.Pod) bool {
	return len(p.Spec.SchedulingGates) == 0 && p.Spec.NodeName == "" && p.DeletionTimestamp == nil && p.Spec.SchedulerName != "nobody"
}

// schedule binds a pod to its pin, if the node has the room and nothing else is
// against it.
func (w *world) schedule(p *corev1.Pod) {
	node := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	if w.accepts(node, p) && (w.calm || w.rand.Intn(12) > 0) {
		w.bindTo(p, node)
		w.notify(p, false)
		return
	}
	p.Status.NominatedNodeName = ""
	if !w.calm && w.rand.Intn(4) == 0 {
		p.Status.NominatedNodeName = node
	}
	w.unschedulable(p)
}

// bindTo binds a pod, as the API server takes it.
func (w *world) bindTo(p *corev1.Pod, node string) {
	ctx := context.Background()
	if !w.real {
		p.Spec.NodeName = node
		w.must(w.api.Update(ctx, p))
		return
	}
	w.must(w.api.SubResource("binding").Create(ctx, p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
	w.must(w.api.Get(ctx, client.ObjectKeyFromObject(p), p))
}

// unschedulable is the scheduler that says that it cannot bind a pod.
func (w *world) unschedulable(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	w.setStatus(p)
}

// accepts tells whether the node has the room, in sums, beside the pods bound to it.
func (w *world) accepts(node string, p *corev1.Pod) bool { return w.acceptsWithout(node, p, nil) }

// acceptsWithout is accepts when others are gone.
func (w *world) acceptsWithout(node string, p *corev1.Pod, gone map[types.UID]bool) bool {
	sum := corev1.ResourceList{}
	add := func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			for name, q := range p.Spec.Containers[i].Resources.Requests {
				total := sum[name]
				total.Add(q)
				sum[name] = total
			}
		}
	}
	add(p)
	for _, other := range w.live {
		if other.Spec.NodeName == node && !podstate.Terminal(other) && !gone[other.UID] {
			add(other)
		}
	}
	at := &corev1.Node{}
	if err := w.api.Get(context.Background(), client.ObjectKey{Name: node}, at); err != nil {
		return false
	}
	for name, has := range at.Status.Allocatable {
		if asked := sum[name]; asked.Cmp(has) > 0 {
			return false
		}
	}
	return true
}
