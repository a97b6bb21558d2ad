// SPDX-License-Identifier: Apache-2.0

// Package waiting says why the pods that hold the gate wait, to those who see ledgers, nodes and the
// allocator's events. It keeps no state beyond a Picture.
package waiting

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Picture is what is known of the cluster at one moment.
type Picture struct {
	// Ledgers of the nodes; nil where they may not be read. Then Room, if it is set, says what the pod
	// lacks, nothing where there is room, and false where that is not known.
	Ledgers []*v1alpha1.SliceLedger
	Room    func(*corev1.Pod) (lacks Verdict, known bool)
	// Node is one by its name, nil for one that may not be read or is not known. Classes are those
	// that may be read, nil where none may.
	Node    func(name string) *corev1.Node
	Classes *classes.Set
	// Said are the allocator's events, and Owners for whom it keeps room, by GPU.
	Said   view.Said
	Owners map[view.GPUOf][]string

	// Now tells a pod of which nothing was said yet from one whose event has expired.
	Now time.Time
	// Most bounds for how many pods that ask for different things the ledgers are looked at; 0 is all.
	// Of the others the last event says why they wait.
	Most int

	// known are the answers of the ledgers by what a pod asks for. rooms and withheld are the ledgers as
	// the engine sees them.
	known    map[string]answer
	rooms    []*placement.Node
	withheld string
}

// Verdict is why a gated pod waits.
type Verdict struct {
	Cause cause.Cause
	// Text is a sentence without its subject.
	Text string
	// Event is true where the text is of an event of the allocator, and not of this moment.
	Event bool
}

// answer is what the ledgers say of a demand.
type answer struct {
	// lacks is empty where there is room; rooms are the GPUs that have it.
	lacks Verdict
	rooms []view.GPUOf
	// unknown: nobody says.
	unknown bool
}

// Waits is why the gated pod waits. The word of the ledgers now goes before the allocator's last event,
// but for what only the allocator knows.
func (p *Picture) Waits(pod *corev1.Pod) Verdict {
	said := Verdict{Event: true}
	last := p.Said.Reason(pod)
	if last != nil {
		said.Cause, said.Text = p.Said.Cause(pod), last.Message
	}
	demand, err := placement.DemandOf(podrequest.Of(pod), p.Classes)
	noClass := errors.Is(err, placement.ErrNoClass)
	switch others := podstate.OtherGates(pod); {
	case noClass && p.Classes == nil && p.Ledgers != nil:
		return said
	case noClass && p.Classes == nil: // the webhook, which Room asks, knows the classes
	case noClass:
		return Verdict{Cause: cause.NoClass, Text: "it waits for its class: " + err.Error()}
	case err != nil:
		return Verdict{Cause: cause.Invalid, Text: "what it asks for cannot be read: " + err.Error()}
	case len(others) > 0:
		return Verdict{Cause: cause.OtherGates, Text: "it waits for other gates first: " + strings.Join(others, ", ")}
	}
	if beforeRoom[said.Cause] {
		return said
	}
	now, looked := p.answer(pod, demand)
	if !looked {
		return said
	}
	if lacks := now.lacks; lacks.Cause != "" {
		switch {
		case said.Cause == cause.EvictionForbidden && lacks.Cause == cause.Insufficient:
			return said // it has the figures of before, and whom to ask
		case podrequest.Of(pod).Group != podrequest.Group{}:
			lacks.Cause = diagnosis.OfGang(lacks.Cause)
		}
		return lacks
	}
	if names := p.owners(now.rooms); len(names) > 0 && p.Said.Reserved(pod) == nil {
		return Verdict{Cause: cause.Reserved, Text: "there is room, which is reserved for " + v1alpha1.NamesText(names, shownNames)}
	}
	switch {
	case besideRoom[said.Cause], said.Cause == "" && last != nil:
		return said
	case last != nil:
		return Verdict{Cause: cause.NotLookedAt, Text: "there is room since: the allocator looks again"}
	case p.Now.Sub(pod.CreationTimestamp.Time) > forgotten && !p.Now.IsZero():
		return Verdict{Text: "there is room by the ledgers, and the allocator's event has expired: its log says what else it waits for"}
	}
	return Verdict{Cause: cause.NotLookedAt, Text: "there is room: the allocator has not said anything of it yet"}
}

// Waiting is the gated pod with why it waits.
func (p *Picture) Waiting(pod *corev1.Pod) view.WaitingPod {
	w, v := view.WaitingPodOf(pod, p.Said), p.Waits(pod)
	if w.Cause = v.Cause; !v.Event {
		w.Now = v.Text
	}
	return w
}

// WaitingPods lists the pods that hold our gate, longest wait first.
func (p *Picture) WaitingPods(pods []corev1.Pod) []view.WaitingPod {
	var waiting []view.WaitingPod
	for i := range pods {
		if podstate.Gated(&pods[i]) {
			waiting = append(waiting, p.Waiting(&pods[i]))
		}
	}
	slices.SortFunc(waiting, func(a, b view.WaitingPod) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod))
	})
	return waiting
}

// beforeRoom are the causes for which the allocator looks for no room, and besideRoom those that it
// finds although ledgers show room.
var (
	beforeRoom = map[cause.Cause]bool{cause.GangUnread: true, cause.GangInvalid: true, cause.GangIncomplete: true,
		cause.WaitsForPod: true, cause.WriteRefused: true, cause.NoNodeLabel: true}
	besideRoom = map[cause.Cause]bool{cause.GangNoRoom: true, cause.Reserved: true, cause.EvictionForbidden: true, cause.SchedulerRefuses: true}
)

// forgotten is how old a pod is that must have had an event: the allocator looks at once.
const forgotten = 5 * time.Minute

// shownNames bounds the names: a gang has many pods.
const shownNames = 4

// answer is what the ledgers say of the pod, unless too many others were looked at. Pods of one
// workload ask for the same.
func (p *Picture) answer(pod *corev1.Pod, demand *placement.Demand) (now answer, looked bool) {
	key := KeyOf(pod)
	if known, is := p.known[key]; is {
		return known, !known.unknown
	}
	if p.known == nil {
		p.known, p.withheld = map[string]answer{}, index.Withheld(slices.Values(p.Ledgers))
		for _, l := range p.Ledgers {
			if room := index.Room(l); room != nil {
				p.rooms = append(p.rooms, room)
			}
		}
	}
	if p.Most > 0 && len(p.known) == p.Most {
		return answer{}, false
	}
	if p.Ledgers == nil {
		known := false
		if p.Room != nil {
			now.lacks, known = p.Room(pod)
		}
		now.unknown = !known
	} else if d := diagnosis.Of(demand, slices.Values(p.rooms), p.refusals(pod)); d != nil {
		d.Withheld = p.withheld
		d.WouldDo = p.withheld != "" && index.WouldDo(demand, slices.Values(p.Ledgers))
		now.lacks = Verdict{Cause: d.Cause(), Text: d.String()}
	} else if len(p.Owners) > 0 {
		for _, node := range p.rooms {
			if plan, fits := placement.Fit(demand, node); fits && len(p.refusals(pod)(node.Name)) == 0 {
				for _, g := range plan.Grants {
					now.rooms = append(now.rooms, view.GPUOf{Node: node.Name, Index: g.Index})
				}
			}
		}
	}
	p.known[key] = now
	return now, !now.unknown
}

// KeyOf is the same for pods that ask for the same and may go to the same nodes.
func KeyOf(pod *corev1.Pod) string {
	key := fmt.Sprint(podrequest.EquivalenceClass(pod), pod.Spec.NodeSelector, pod.Spec.Affinity.String())
	for _, t := range pod.Spec.Tolerations {
		key += t.String()
	}
	return key
}

// refusals are what keeps the pod off a node, whatever is free there; none where nothing is known to.
func (p *Picture) refusals(pod *corev1.Pod) func(node string) []string {
	return func(name string) []string {
		if node := p.Node(name); node != nil {
			if against := feasible.Against(pod, node); against != "" {
				return []string{against}
			}
		}
		return nil
	}
}

// owners are for whom room on the GPUs is kept.
func (p *Picture) owners(rooms []view.GPUOf) (names []string) {
	for _, gpu := range rooms {
		names = append(names, p.Owners[gpu]...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
