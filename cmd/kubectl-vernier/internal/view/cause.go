// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/state/podstate"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// causes are, of each object, the event that says most of why it does not go on: the newest of
// a failure, else the newest of all, with how often its reason has come.
func causes(events []corev1.Event) map[model.Subject]string {
	type of struct {
		model.Subject
		reason string
	}
	times, failed := map[of]int32{}, []corev1.Event{}
	for i := range events {
		e := &events[i]
		times[of{model.SubjectOf(e), e.Reason}] += max(e.Count, 1)
		if strings.Contains(e.Reason, "Failed") {
			failed = append(failed, *e)
		}
	}
	last, text := model.LastEvents(events), map[model.Subject]string{}
	maps.Copy(last, model.LastEvents(failed))
	for subject, e := range last {
		text[subject] = e.Reason
		if n := times[of{subject, e.Reason}]; n > 1 {
			text[subject] += fmt.Sprintf(" (%d times)", n)
		}
		text[subject] += ": " + e.Message
	}
	return text
}

// started reports whether the pod runs, or has.
func started(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning || podstate.Terminal(pod)
}

// failure is why a pod has failed, as the kubelet, the component that ended it, or else its containers say.
func failure(pod *corev1.Pod) (reason, message string) {
	if pod.Status.Reason != "" {
		return pod.Status.Reason, pod.Status.Message
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason, c.Message
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return ended(s.Name, t)
		}
	}
	return cmp.Or(pod.Status.Message, "nobody says why"), ""
}

// ended is why a container has failed.
func ended(container string, t *corev1.ContainerStateTerminated) (reason, message string) {
	return fmt.Sprintf("container %s ended with exit code %d", container, t.ExitCode), strings.TrimPrefix(t.Reason+": "+t.Message, "Error: ")
}

// backsOff is why a container failed that the kubelet waits to start again; empty for none.
func backsOff(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := s.LastTerminationState.Terminated; t != nil && t.ExitCode != 0 && s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" {
			reason, message := ended(s.Name, t)
			return fmt.Sprintf("%s, %d restarts so far", strings.TrimRight(reason+": "+message, ": "), s.RestartCount)
		}
	}
	return ""
}

// ungated is the state of a pod that does not wait at our gate.
func (e *Evidence) ungated(pod *corev1.Pod) (cause.Cause, string) {
	doc, err := podrequest.PlacementOf(pod)
	switch {
	case !podrequest.Marked(pod):
		return "", "it asks for nothing that Vernier gives: `kubectl describe pod` says what it waits for"
	case pod.Status.Phase == corev1.PodFailed:
		reason, message := failure(pod)
		return cause.Failed, fmt.Sprintf("it has failed on node %s: %s", cmp.Or(pod.Spec.NodeName, "(none)"), strings.TrimRight(reason+": "+message, ": "))
	case err != nil:
		return cause.NoPlace, "it holds no gate of Vernier's and has no place: create it again"
	case backsOff(pod) != "":
		return cause.Failed, fmt.Sprintf("it is on node %s: %s", pod.Spec.NodeName, backsOff(pod))
	case pod.Spec.NodeName == "":
		of, why := e.unbound(pod)
		return of, fmt.Sprintf("it has its place on node %s%s, and %s", doc.Node, topologyOf(pod, doc), why)
	case pod.Status.Phase != corev1.PodPending:
		return "", fmt.Sprintf("it does not wait for Vernier: it is on node %s%s, %s", pod.Spec.NodeName, topologyOf(pod, doc), strings.ToLower(string(pod.Status.Phase)))
	}
	of, state := cause.Cause(""), fmt.Sprintf("it is on node %s%s, %s", pod.Spec.NodeName, topologyOf(pod, doc), strings.ToLower(string(pod.Status.Phase)))
	if at := slices.IndexFunc(e.Ledgers, func(l v1alpha1.SliceLedger) bool { return l.Name == pod.Spec.NodeName }); at >= 0 {
		if n := model.NodeOf(&e.Ledgers[at]); n.Ready != metav1.ConditionTrue {
			of, state = cause.NodeNotReady, state+"; the node starts no container with a share now: "+n.Note
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return cmp.Or(of, cause.NotStarted), fmt.Sprintf("%s; the kubelet says of container %s: %s: %s", state, s.Name, w.Reason, w.Message)
		}
	}
	// Of a pod without a sandbox the containers' statuses say nothing.
	if text, ok := e.kubelet[model.AsSubject(pod)]; ok {
		return cmp.Or(of, cause.NotStarted), state + "; the kubelet says: " + text
	}
	return of, state
}

// schedulerPatience is how long after its placement a pod counts as one that no scheduler
// looks at.
const schedulerPatience = 30 * time.Second

// Untouched reports whether the status of a placed pod shows nothing of a scheduler.
func Untouched(pod *corev1.Pod) bool {
	return podstate.TargetNode(pod) != "" && pod.Spec.NodeName == "" && pod.Status.NominatedNodeName == "" && scheduled(pod) == nil
}

// scheduled is the scheduler's condition, nil where there is none. What the API server says of a
// gated pod stays until the scheduler says something else.
func scheduled(pod *corev1.Pod) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason != corev1.PodReasonSchedulingGated {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// unbound is why a placed pod is not bound.
func (e *Evidence) unbound(pod *corev1.Pod) (cause.Cause, string) {
	const state = "the scheduler has not bound it yet: "
	if c := scheduled(pod); c != nil {
		return cause.Unschedulable, state + cmp.Or(c.Message, c.Reason)
	}
	since := placedAt(pod)
	said := causes(slices.DeleteFunc(slices.Clone(e.Schedulers), func(s corev1.Event) bool {
		return model.SubjectOf(&s) != model.AsSubject(pod) || model.ReasonOf(&s).Seen.Time.Before(since)
	}))
	if text, ok := said[model.AsSubject(pod)]; ok {
		return cause.Unschedulable, state + text
	}
	if !Untouched(pod) || e.bindsVolumes(pod) || e.Now.Sub(since) < schedulerPatience {
		return "", state + "`kubectl describe pod` says why"
	}
	name := cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	text := fmt.Sprintf("no scheduler %q has looked at it since: start that scheduler", name)
	if name != corev1.DefaultSchedulerName {
		text += ", or delete the pod and create it with schedulerName " + corev1.DefaultSchedulerName
	}
	return cause.NoScheduler, text
}

// placedAt is when the pod got its place, or else when it was created.
func placedAt(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for _, f := range pod.ManagedFields {
		if f.Time != nil && f.FieldsV1 != nil && f.Time.After(at) && strings.Contains(f.FieldsV1.GetRawString(), `"f:`+v1alpha1.AnnotationPlacement+`"`) {
			at = f.Time.Time
		}
	}
	return at
}
