// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/state/feasible"
	ledgers "vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/allocator/state/waiting"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasoned is a pod, and everything that is known of why it waits.
type Reasoned struct {
	model.WaitingPod
	// State in a sentence.
	State string `json:"state"`
	// Phase of the pod.
	Phase corev1.PodPhase `json:"phase"`
	// Classes of nodes, and what each has for the pod; none for one that does not
	// wait for Vernier.
	Classes []NodeClass `json:"classes"`
	// Hints are what around the pod keeps it from starting, and what helps.
	Hints []string `json:"hints,omitempty"`

	// alike is the same for pods that have failed for the same reason, whose texts may differ.
	alike string
}

// evicted reports whether the allocator has had the pod evicted.
func (r *Reasoned) evicted() bool {
	return r.Reason != nil && r.Reason.Reason == model.ReasonPreempted
}

// Settled reports whether the pod runs, and is to go on, or has done its work, and there is
// nothing to say about it.
func (r *Reasoned) Settled() bool {
	return len(r.Hints) == 0 && (r.Phase == corev1.PodRunning && !r.evicted() && r.Cause != cause.Failed || r.Phase == corev1.PodSucceeded)
}

// Evidence is what Why reasons from.
type Evidence struct {
	// Ledgers of the nodes; nil where the user may not read them. Then Room says what a pod lacks, as
	// in waiting.Picture.
	Ledgers []v1alpha1.SliceLedger
	Room    func(*corev1.Pod) (lacks waiting.Verdict, known bool)
	// Nodes by name; none where the user may not read them.
	Nodes map[string]*corev1.Node
	// Classes are the GPUClasses; nil where the user may not read them.
	Classes []v1alpha1.GPUClass
	// Verdicts are the allocator's events, Kubelet the kubelets' warnings, Schedulers the events
	// of the schedulers that the pods name, and Claiming those of PersistentVolumeClaims.
	Verdicts, Kubelet, Schedulers, Claiming []corev1.Event
	Around
	Now time.Time

	// kubelet and claimEvents are the causes among these events.
	kubelet, claimEvents map[model.Subject]string
	groups               *gang.Groups
}

// owners are for whom it keeps room, by GPU.
func (e *Evidence) owners(said model.Said) map[model.GPUOf][]string {
	all := map[model.GPUOf][]string{}
	for i := range e.Pods {
		if r := said.Reserved(&e.Pods[i]); r != nil {
			for _, gpu := range r.GPUs() {
				all[gpu] = append(all[gpu], e.Pods[i].Name)
			}
		}
	}
	return all
}

// Why says why each of the pods waits, or that it does not.
func Why(pods []corev1.Pod, from Evidence) []Reasoned {
	from.kubelet, from.claimEvents = causes(from.Kubelet), causes(from.Claiming)
	verdicts, picture := model.LastEvents(from.Verdicts), from.Picture()
	// Pods of one workload ask for the same.
	rooms := map[string][]NodeClass{}
	all := make([]Reasoned, 0, len(pods))
	for i := range pods {
		pod := &pods[i]
		r := Reasoned{Phase: pod.Status.Phase, Classes: []NodeClass{}}
		if podstate.Gated(pod) && !podstate.Terminal(pod) {
			r.gated(pod, picture, &from, rooms)
		} else {
			r.WaitingPod = model.WaitingPod{Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.UID, Created: pod.CreationTimestamp, Needs: []model.Need{}}
			if e, ok := verdicts[model.AsSubject(pod)]; ok {
				r.Reason = model.ReasonOf(&e)
			}
			if r.Cause, r.State = from.ungated(pod); r.evicted() {
				r.Cause, r.State = cause.Preempted, "it is "+r.Reason.Message
			}
			if reason, _ := failure(pod); pod.Status.Phase == corev1.PodFailed {
				r.alike = "failed: " + reason
			}
		}
		around := cause.Cause("")
		if around, r.Hints = from.hints(pod, r.fits()); r.Cause == cause.NotLookedAt && len(r.Hints) > 0 {
			r.Cause, r.State, r.Now = around, waitsForAPlace, ""
		} else if around != "" && (around != cause.GangIncomplete || r.Cause == "") {
			r.Cause = around
		}
		if r.Reason != nil { // of an incomplete gang there is an event too
			r.Hints = slices.DeleteFunc(r.Hints, func(hint string) bool { return hint == r.Reason.Message })
		}
		all = append(all, r)
	}
	return all
}

// gated fills in the state of a pod that holds our gate, and what the nodes have for it.
func (r *Reasoned) gated(pod *corev1.Pod, picture *waiting.Picture, from *Evidence, rooms map[string][]NodeClass) {
	r.WaitingPod = picture.Waiting(pod)
	switch r.State = waitsForAPlace; {
	case r.Cause == cause.NoClass || r.Cause == cause.Invalid || r.Cause == cause.OtherGates:
		r.State = r.Now
	case r.Now != "":
		r.State += ": " + r.Now
	}
	demand, err := placement.DemandOf(podrequest.Of(pod), picture.Classes)
	if err != nil {
		return
	}
	class := waiting.KeyOf(pod)
	if _, seen := rooms[class]; !seen {
		rooms[class] = FitIn(demand, from.Ledgers, Kept{}, ledgers.Room, from.refusals(pod))
	}
	r.Classes = rooms[class]
}

// Picture is what the evidence says of the cluster.
func (e *Evidence) Picture() *waiting.Picture {
	p := &waiting.Picture{Node: func(name string) *corev1.Node { return e.Nodes[name] }, Said: model.SaidIn(e.Verdicts), Now: e.Now}
	if e.Classes != nil {
		p.Classes = classes.Of(e.Classes...)
	}
	p.Owners = e.owners(p.Said)
	if e.Ledgers == nil {
		p.Room, p.Most = e.Room, mostAsked
	} else {
		p.Ledgers = []*v1alpha1.SliceLedger{}
	}
	for i := range e.Ledgers {
		p.Ledgers = append(p.Ledgers, &e.Ledgers[i])
	}
	return p
}

// mostAsked is for how many pods that ask for different things Room is called.
const mostAsked = 32

// waitsForAPlace begins the state of a pod that waits for a place.
const waitsForAPlace = "it waits for a place"

// refusals are what keeps the pod off a node, whatever is free there; empty where nothing is known to.
func (e *Evidence) refusals(pod *corev1.Pod) func(node string) string {
	return func(name string) string {
		if node := e.Nodes[name]; node != nil {
			return feasible.Against(pod, node)
		}
		return ""
	}
}

// fits reports whether a node has room for the pod.
func (r *Reasoned) fits() bool {
	return slices.ContainsFunc(r.Classes, func(c NodeClass) bool { return len(c.Fits) > 0 })
}

// topologyOf says how near to each other the pod's GPUs are, where it asks for some topology.
func topologyOf(pod *corev1.Pod, placed *v1alpha1.Placement) string {
	switch asked := podrequest.WishesOf(pod.Annotations).Topology; {
	case placed.Topology == "":
		return ""
	case asked.Level == placed.Topology:
		return fmt.Sprintf(" (topology %s)", placed.Topology)
	default:
		return fmt.Sprintf(" (topology %s, asked for %s)", placed.Topology, asked)
	}
}

// ReasonList is the printed form of why.
type ReasonList struct {
	List[Reasoned]
	// Refused are the controllers that cannot create pods.
	Refused []RefusedPods `json:"refused,omitempty"`
}

// RefusedPods is a controller whose pods the API server refuses.
type RefusedPods struct {
	// Object is the controller, as KIND/NAME.
	Object  string      `json:"object"`
	Cause   cause.Cause `json:"cause"`
	Message string      `json:"message"`
	Seen    metav1.Time `json:"seen"`
}

// NewReasonList is the printed form of what was found out of pods and their controllers.
func NewReasonList(pods []Reasoned, refused []RefusedPods) ReasonList {
	return ReasonList{NewList(KindReasons, pods), refused}
}

// Refusals are the controllers whose pods the API server refuses, by their FailedCreate
// events. It has the last of each, unless it has created one of the pods since.
func Refusals(pods []corev1.Pod, events []corev1.Event) []RefusedPods {
	last := model.LastEvents(events)
	for i := range pods {
		if owner := metav1.GetControllerOfNoCopy(&pods[i]); owner != nil {
			// Times of both are whole seconds.
			of := model.Subject{Namespace: pods[i].Namespace, Name: owner.Name, UID: owner.UID}
			if e, ok := last[of]; ok && pods[i].CreationTimestamp.After(e.LastTimestamp.Time) {
				delete(last, of)
			}
		}
	}
	var all []RefusedPods
	for _, e := range last {
		of := cause.Refused
		if strings.Contains(e.Message, "exceeded quota: ") {
			of = cause.Quota
		}
		all = append(all, RefusedPods{e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, of, e.Message, e.LastTimestamp})
	}
	slices.SortFunc(all, func(a, b RefusedPods) int { return strings.Compare(a.Object, b.Object) })
	return all
}

// Alike are pods that wait for the same reason.
type Alike struct {
	// Reasoned is the first of them by name, with the last event that any of them has.
	Reasoned
	Pods int
}

// Group groups the pods that wait by their reason, and leaves out settled ones.
func Group(all []Reasoned) []Alike {
	var groups []Alike
	at := map[string]int{}
	for _, r := range all {
		if r.Settled() {
			continue
		}
		reason := ""
		if r.Reason != nil {
			reason = r.Reason.Reason
		}
		room := ""
		if r.Reserved != nil {
			room = r.Reserved.Message
		}
		key := fmt.Sprintf("%s\n%s\n%s\n%v\n%v", cmp.Or(r.alike, r.State), reason, room, r.Needs, r.Hints)
		i, known := at[key]
		if !known {
			at[key] = len(groups)
			groups = append(groups, Alike{r, 1})
			continue
		}
		g := &groups[i]
		g.Pods++
		if r.Reason != nil && r.Reason.Seen.After(g.Reason.Seen.Time) {
			g.Reason = r.Reason
		}
	}
	return groups
}

// Heading names the pods of the group and their state.
func (a Alike) Heading() string {
	if a.Pods == 1 {
		return fmt.Sprintf("Pod %s/%s: %s", a.Namespace, a.Pod, a.State)
	}
	return fmt.Sprintf("%s, such as %s/%s: %s", countedPods(a.Pods), a.Namespace, a.Pod, a.State)
}

// Summary counts the pods of a workload by what becomes of them.
func Summary(all []Reasoned) string {
	var waiting, starting, running, failed, ended int
	for _, r := range all {
		switch {
		case r.Phase == corev1.PodRunning:
			running++
		case r.Phase == corev1.PodFailed:
			failed++
		case r.Phase == corev1.PodSucceeded:
			ended++
		case len(r.Needs) > 0 || r.Error != "":
			waiting++
		default:
			starting++
		}
	}
	parts := []string{}
	for _, part := range []struct {
		n    int
		what string
	}{{waiting, "wait for a place"}, {starting, "not started"}, {running, "running"}, {failed, "failed"}, {ended, "ended"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	if len(parts) == 0 {
		return "no pods"
	}
	return countedPods(len(all)) + ": " + strings.Join(parts, ", ")
}

func countedPods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}
