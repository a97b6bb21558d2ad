// SPDX-License-Identifier: Apache-2.0

// Package gang owns which pods are members of which group, and how far each gang has come.
// It reads pods and the sizes of groups (package podgroup), returns which gangs an update may
// concern, and decides nothing.
//
// Groups may be used concurrently. Callers must not change its results.
package gang

import (
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Groups are the pods that belong to a group, ours or not, by group and by name.
type Groups struct {
	sizes *podgroup.Sizes

	mu      sync.Mutex
	members map[podrequest.Group]map[types.NamespacedName]*corev1.Pod
	of      map[types.NamespacedName]podrequest.Group
	// seen are the gangs as they were worked out last, until something of them changes.
	seen map[podrequest.Group]*Gang
	// whole is how many members a gang needed when none of it ran, or all did.
	whole map[podrequest.Group]int
	// split are the gangs whose members are placed one by one: any one of them is enough.
	split map[podrequest.Group]bool
}

// New knows no pods. sizes says how many members must start together.
func New(sizes *podgroup.Sizes) *Groups {
	return &Groups{
		sizes:   sizes,
		members: map[podrequest.Group]map[types.NamespacedName]*corev1.Pod{}, of: map[types.NamespacedName]podrequest.Group{},
		seen: map[podrequest.Group]*Gang{}, whole: map[podrequest.Group]int{}, split: map[podrequest.Group]bool{},
	}
}

// standing is how far a member of a gang has come.
type standing int

const (
	// out is a member that failed or is being deleted: it does not count.
	out standing = iota
	// away waits for another system's gate.
	away
	// due waits for us alone.
	due
	// in is past our gate, or never had it: it runs, will, or has done its work.
	in
)

func standingOf(pod *corev1.Pod) standing {
	switch {
	case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
		return out
	case podstate.Ready(pod):
		return due
	case !podstate.Gated(pod):
		return in
	default:
		return away
	}
}

// Gang is the current incarnation of a group at one moment, as far as it counts.
type Gang struct {
	Name podrequest.Group
	// Members are all that count, Due those among them that wait for us alone,
	// oldest first.
	Members, Due []*corev1.Pod
	// In is how many are past our gate.
	In int
	// Least is how many must start together, Err why that is not known.
	Least int
	Err   error
	// Gates are those of others that members wait for.
	Gates []string
	// Topology are the labels of which the members' nodes must have the same values, Nodes those
	// of the members that are past our gate.
	Topology, Nodes []string
	// refills reports whether the due members are missing from a gang that runs, and ask for no
	// more than the others have, for nothing until they are placed.
	refills func() bool
}

// Gang is what is known of a group now.
func (gs *Groups) Gang(name podrequest.Group) *Gang {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g := gs.seen[name]; g != nil {
		return g
	}
	g := &Gang{Name: name}
	for _, pod := range gs.currentIncarnation(name, podstate.OldestFirst(gs.members[name])) {
		switch standingOf(pod) {
		case out:
			continue
		case in:
			g.In++
			if node := podstate.TargetNode(pod); node != "" && !slices.Contains(g.Nodes, node) {
				g.Nodes = append(g.Nodes, node)
			}
		case due:
			g.Due = append(g.Due, pod)
		case away:
			for _, gate := range podstate.OtherGates(pod) {
				if !slices.Contains(g.Gates, gate) {
					g.Gates = append(g.Gates, gate)
				}
			}
		}
		g.Members = append(g.Members, pod)
	}
	slices.Sort(g.Gates)
	g.Least, g.Err = gs.sizes.Min(name, g.Members)
	g.Topology = gs.sizes.Topology(name)
	// One that was made larger since misses nothing that it had: it goes by its age.
	if _, known := gs.whole[name]; g.Err == nil && len(gs.members[name]) > 0 && (!known || g.In == 0 || g.In >= g.Least) {
		gs.whole[name] = g.Least
	}
	wasWhole := g.Least <= gs.whole[name]
	g.refills = sync.OnceValue(func() bool {
		if g.Err != nil || g.In == 0 || g.In >= g.Least || len(g.Due) == 0 || !wasWhole {
			return false
		}
		has := sumOf(slices.DeleteFunc(slices.Clone(g.Members), func(p *corev1.Pod) bool { return standingOf(p) != in || podstate.Terminal(p) }))
		asks := sumOf(g.Due[:min(len(g.Due), g.Missing())])
		return asks.Core <= has.Core && asks.MemPercent <= has.MemPercent && asks.MemMiB <= has.MemMiB
	})
	if len(gs.members[name]) > 0 {
		gs.seen[name] = g
	}
	return g
}

// sumOf is what pods ask for in all, in the units in which they do.
func sumOf(pods []*corev1.Pod) (sum v1alpha1.Share) {
	for _, pod := range pods {
		// Without any it asks for nothing, or its own events say that it is wrong.
		for _, s := range podrequest.SharesOf(pod) {
			sum.Core += v1alpha1.Percent(s.GPUs) * s.Core
			sum.MemPercent += v1alpha1.Percent(s.GPUs) * s.MemPercent
			sum.MemMiB += v1alpha1.MiB(s.GPUs) * s.MemMiB
		}
	}
	return sum
}

// Refills is the gang that runs and from which the pod, which waits, is missing; nil for none. The
// gang is below its minimum until the pod is placed. It is none where the missing members ask for
// more than the rest has. No large pod goes before others for having small ones.
func (gs *Groups) Refills(pod *corev1.Pod) *Gang {
	name, is := podrequest.GroupOf(pod)
	if !is {
		return nil
	}
	if g := gs.Gang(name); g.refills() && slices.ContainsFunc(g.Due, func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
		return g
	}
	return nil
}

// Ends is how the pods of a group may be ended: see podgroup.Sizes.
func (gs *Groups) Ends(name podrequest.Group) string { return gs.sizes.Ends(name) }

// Missing is how many of the due members have to start together.
func (g *Gang) Missing() int { return max(1, g.Least-g.In) }

// Enough reports whether any one of the due members makes the gang complete, and may be
// wherever it fits.
func (g *Gang) Enough() bool { return g.Err == nil && g.Missing() <= 1 && len(g.Topology) == 0 }

// Incomplete says how many of how many are there.
func (g *Gang) Incomplete() string {
	text := fmt.Sprintf("%s: %d of %d pods are there", g.Name, len(g.Members), g.Least)
	if n := len(g.Members) - g.In - len(g.Due); n > 0 {
		text += fmt.Sprintf(", %d of them wait(s) for scheduling gates of others: %v", n, g.Gates)
	}
	return text + fmt.Sprintf("; they start together (%s)", g.Name.API.Field())
}

// Update takes in a version of a pod and returns the gangs to which it may matter.
func (gs *Groups) Update(pod *corev1.Pod) (changed []podrequest.Group) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	key := podstate.KeyOf(pod)
	name, inGang := podrequest.GroupOf(pod)
	if was, member := gs.of[key]; member && was != name {
		changed = gs.leave(gs.members[was][key])
	}
	if !inGang {
		return changed
	}
	if gs.members[name] == nil {
		gs.members[name] = map[types.NamespacedName]*corev1.Pod{}
	}
	old := gs.members[name][key]
	gs.members[name][key], gs.of[key] = pod, name
	delete(gs.seen, name)
	// Most changes of pods that run are of no interest to the others.
	is, was := accountOf(pod), account{}
	if old != nil {
		was = accountOf(old)
	}
	if old != nil && is.standing != due && is == was {
		return changed
	}
	if is.standing == out || old != nil && is.by != was.by {
		delete(gs.split, name)
	}
	return append(changed, name)
}

// account is what there is in a member on which it depends what becomes of the others:
// whether it counts, of which incarnation of the gang it is, and how large it says that the
// gang is.
type account struct {
	standing
	by    controller
	ended int64
	total string
}

func accountOf(pod *corev1.Pod) account {
	is := account{standing: standingOf(pod), by: controllerOf(pod), total: podrequest.KueueTotal(pod)}
	if end, over := endOf(pod); over {
		is.ended = end.UnixNano()
	}
	return is
}

// Delete takes out a pod and returns the gang that it was a member of.
func (gs *Groups) Delete(pod *corev1.Pod) (changed []podrequest.Group) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return gs.leave(pod)
}

// leave takes out a member. The caller holds mu.
func (gs *Groups) leave(pod *corev1.Pod) (changed []podrequest.Group) {
	key := podstate.KeyOf(pod)
	name := gs.of[key]
	if known := gs.members[name][key]; known == nil || known.UID != pod.UID {
		return nil
	}
	delete(gs.of, key)
	delete(gs.seen, name)
	delete(gs.split, name)
	if delete(gs.members[name], key); len(gs.members[name]) == 0 {
		delete(gs.members, name)
		delete(gs.whole, name)
	}
	return []podrequest.Group{name}
}

// Changed is for a PodGroup that says something else than before. It reports whether the
// group has members.
func (gs *Groups) Changed(name podrequest.Group) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	delete(gs.seen, name)
	return len(gs.members[name]) > 0
}

// AllChanged is Changed for all PodGroups of an API. It returns the groups that have members.
func (gs *Groups) AllChanged(api podrequest.GroupAPI) (changed []podrequest.Group) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for name := range gs.members {
		if name.API == api {
			delete(gs.seen, name)
			changed = append(changed, name)
		}
	}
	return changed
}

// PlacedWith is the gang that the pod has to be placed with: while it waits for us and may
// have to start with others.
func (gs *Groups) PlacedWith(pod *corev1.Pod) (name podrequest.Group, with bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if name, is := podrequest.GroupOf(pod); is && podstate.Ready(pod) && !gs.split[name] {
		return name, true
	}
	return podrequest.Group{}, false
}

// Alone reports whether the pod is placed alone: it belongs to no gang, or there are
// enough of its gang with it. One of an earlier incarnation is not the one that is missing:
// its controller was made again, and it goes in a moment.
func (gs *Groups) Alone(pod *corev1.Pod) bool {
	name, is := podrequest.GroupOf(pod)
	if !is {
		return true
	}
	g := gs.Gang(name)
	return g.Enough() && slices.ContainsFunc(g.Due, func(p *corev1.Pod) bool { return p.UID == pod.UID })
}

// Split reports whether any one of the due members makes the gang complete. They are placed
// one by one then; single are the members that were not looked at so yet. A member that
// becomes due later is looked at as it comes, so once is enough. It is not when the gang has changed
// since g was worked out, or a member is lost or gets another controller. Then other members
// may count.
func (gs *Groups) Split(g *Gang) (split bool, single []*corev1.Pod) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if !g.Enough() {
		delete(gs.split, g.Name)
		return false, nil
	}
	if !gs.split[g.Name] {
		if gs.seen[g.Name] == g {
			gs.split[g.Name] = true
		}
		single = g.Due
	}
	return true, single
}

// Merge has the pod placed with its gang again.
func (gs *Groups) Merge(pod *corev1.Pod) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if name, is := podrequest.GroupOf(pod); is {
		delete(gs.split, name)
	}
}

// MergeAll is Merge for all: a new leader has looked at no member yet.
func (gs *Groups) MergeAll() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	clear(gs.split)
}
