// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// maxPods is how many pods of a Workload are looked at. For one of more nothing is reserved.
const maxPods = 2000

// flavorPause is how long a Workload waits for its flavors and its namespace to be seen.
const flavorPause = queue.FirstRetry

// unadmissible is why a Workload's pods would be refused.
type unadmissible struct{ error }

// asksOf are requests for the pods of a Workload that ask for a share: its own pods where it was made of
// pods, and else as many of each template as Kueue has counted.
func (k *Workloads) asksOf(w *workload) (asks []scheduling.Request, err error) {
	if enabled, known := k.Enabled(w.Namespace); !known {
		return nil, queue.Yield{Pause: flavorPause}
	} else if !enabled {
		return nil, nil
	}
	if existing := w.pods(); len(existing) > 0 {
		return k.ofPods(w, existing)
	}
	for _, set := range w.Spec.PodSets {
		assigned := w.assigned(set.Name)
		count := set.Count
		if assigned.Count != nil {
			count = *assigned.Count
		}
		pod, err := k.ofTemplate(w, &set)
		if err != nil {
			return nil, err
		}
		if pod == nil || count < 1 {
			continue
		}
		if err := k.flavored(pod, assigned); err != nil {
			return nil, err
		}
		ask, err := scheduling.RequestOf(pod, k.Classes)
		if err != nil {
			return nil, unadmissible{fmt.Errorf("spec.podSets[%s].template: %w", set.Name, err)}
		}
		for range min(count, maxPods+1) {
			asks = append(asks, numbered(ask, w, len(asks)))
		}
		if len(asks) > maxPods {
			break
		}
	}
	return asks, nil
}

// ofTemplate is a pod of the template as admission would leave it; nil where it asks for no share.
func (k *Workloads) ofTemplate(w *workload, set *podSet) (*corev1.Pod, error) {
	of := &corev1.Pod{ObjectMeta: *set.Template.ObjectMeta.DeepCopy(), Spec: set.Template.Spec}
	of.Namespace, of.Name, of.OwnerReferences = w.Namespace, w.Name, nil
	if owner := metav1.GetControllerOfNoCopy(w); owner != nil {
		of.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	raw, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	pod, err := k.Read(w.Namespace, raw)
	if err != nil {
		return nil, unadmissible{fmt.Errorf("spec.podSets[%s].template: %w", set.Name, err)}
	}
	if pod == nil || len(podrequest.SharesOf(pod)) == 0 {
		return nil, nil
	}
	pod.Namespace = w.Namespace
	podrequest.DefaultRequests(pod)
	if ref := w.Spec.PriorityClassRef; ref != nil && ref.Group == "scheduling.k8s.io" {
		pod.Spec.Priority, pod.Spec.PriorityClassName = w.Spec.Priority, ref.Name
	}
	podstate.TrimPod(pod)
	return pod, nil
}

// ofPods are those of the pods that are ours. They are copies, so that each stays what it is to others.
func (k *Workloads) ofPods(w *workload, existing []types.UID) (asks []scheduling.Request, err error) {
	for _, uid := range existing[:min(len(existing), maxPods+1)] {
		known := k.Cache.PodOf(uid)
		if known == nil || known.Namespace != w.Namespace || !podstate.Gated(known) {
			continue
		}
		pod := known.DeepCopy()
		if err := k.flavored(pod, w.assigned(podrequest.KueueRole(pod))); err != nil {
			return nil, err
		}
		ask, err := scheduling.RequestOf(pod, k.Classes)
		if err != nil {
			return nil, unadmissible{fmt.Errorf("pod %s: %w", pod.Name, err)}
		}
		asks = append(asks, numbered(ask, w, len(asks)))
	}
	return asks, nil
}

// numbered is the request for one more pod like it. Its name is that of no pod.
func numbered(ask scheduling.Request, w *workload, n int) scheduling.Request {
	pod := *ask.Pod
	pod.Name, pod.UID = fmt.Sprintf("%s/%d", w.Name, n), types.UID(fmt.Sprintf("%s/%d", w.UID, n))
	return scheduling.Request{Pod: &pod, Demand: ask.Demand}
}

// assigned is what Kueue has assigned to a set of pods; what it has to the only one where it is not named.
func (w *workload) assigned(name string) podSetAssignment {
	all := w.Status.Admission.PodSetAssignments
	at := slices.IndexFunc(all, func(a podSetAssignment) bool { return a.Name == name })
	if at < 0 && len(all) != 1 {
		return podSetAssignment{}
	}
	return all[max(at, 0)]
}

// flavored adds to the pod what Kueue will, of the flavors.
func (k *Workloads) flavored(pod *corev1.Pod, assigned podSetAssignment) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	selector, done := maps.Clone(pod.Spec.NodeSelector), map[string]bool{}
	for _, name := range assigned.Flavors {
		flavor := k.flavors[name]
		if flavor == nil {
			return queue.Yield{Pause: flavorPause}
		}
		if done[name] {
			continue
		}
		done[name] = true
		if selector == nil {
			selector = map[string]string{}
		}
		maps.Copy(selector, flavor.Spec.NodeLabels)
		pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations), flavor.Spec.Tolerations...)
	}
	pod.Spec.NodeSelector = selector
	return nil
}
