// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/podstate"
)

// gangs are the pods that belong to a group, ours or not, by group and by name.
type gangs struct {
	members map[group.Name]map[types.NamespacedName]*corev1.Pod
	of      map[types.NamespacedName]group.Name
	// seen are the gangs as they were worked out last, until something of them changes.
	seen map[group.Name]*gang
	// apart are those whose members are looked at one by one, since there are enough with
	// any of them.
	apart map[group.Name]bool
}

func noGangs() gangs {
	return gangs{
		members: map[group.Name]map[types.NamespacedName]*corev1.Pod{}, of: map[types.NamespacedName]group.Name{},
		seen: map[group.Name]*gang{}, apart: map[group.Name]bool{},
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
	case !podstate.Gated(pod):
		return in
	case podstate.Ready(pod):
		return due
	default:
		return away
	}
}

// gang is the last run of a group at one moment, as far as it counts.
type gang struct {
	name group.Name
	// members are all that count, due those among them that wait for us alone,
	// oldest first.
	members, due []*corev1.Pod
	in           int
	// least is how many must start together, err why that is not known.
	least int
	err   error
	// gates are those of others that members wait for.
	gates []string
}

// gang is what is known of a group now. Nobody may change it.
func (a *Allocator) gang(name group.Name) *gang {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.gangs.seen[name]; g != nil {
		return g
	}
	g := &gang{name: name}
	for _, pod := range a.lastRun(name, podstate.OldestFirst(a.gangs.members[name])) {
		switch standingOf(pod) {
		case out:
			continue
		case in:
			g.in++
		case due:
			g.due = append(g.due, pod)
		case away:
			for _, gate := range podstate.OtherGates(pod) {
				if !slices.Contains(g.gates, gate) {
					g.gates = append(g.gates, gate)
				}
			}
		}
		g.members = append(g.members, pod)
	}
	slices.Sort(g.gates)
	g.least, g.err = a.Groups.Min(name, g.members)
	if len(a.gangs.members[name]) > 0 {
		a.gangs.seen[name] = g
	}
	return g
}

// missing is how many of those that are due have to start together.
func (g *gang) missing() int { return g.least - g.in }

// enough tells whether there are enough with any one of those that are due: each is a set
// of one.
func (g *gang) enough() bool { return g.err == nil && g.missing() <= 1 }

// away is how many members wait for the gates of others.
func (g *gang) away() int { return len(g.members) - g.in - len(g.due) }

// join takes in a member. The gang is looked at again if that may change anything.
// The caller holds mu.
func (a *Allocator) join(pod *corev1.Pod) {
	key := podstate.KeyOf(pod)
	name, inGang := group.Of(pod)
	if was, member := a.gangs.of[key]; member && was != name {
		a.leave(a.gangs.members[was][key])
	}
	if !inGang {
		return
	}
	if a.gangs.members[name] == nil {
		a.gangs.members[name] = map[types.NamespacedName]*corev1.Pod{}
	}
	old := a.gangs.members[name][key]
	a.gangs.members[name][key], a.gangs.of[key] = pod, name
	delete(a.gangs.seen, name)
	// Most changes of pods that run are of no interest to the others.
	is, was := accountOf(pod), account{}
	if old != nil {
		was = accountOf(old)
	}
	if old == nil || is.standing == due || is != was {
		if is.standing == out || old != nil && is.by != was.by {
			delete(a.gangs.apart, name)
		}
		a.enqueue(item{gang: name})
	}
}

// account is what there is in a member on which it depends what becomes of the others:
// whether it counts, of which run of the gang it is, and how large it says that the gang is.
type account struct {
	standing
	by    controller
	ended int64
	total string
}

func accountOf(pod *corev1.Pod) account {
	is := account{standing: standingOf(pod), by: controllerOf(pod), total: pod.Annotations[group.AnnotationKueueTotal]}
	if end, over := endOf(pod); over {
		is.ended = end.UnixNano()
	}
	return is
}

// leave takes out a member. The caller holds mu.
func (a *Allocator) leave(pod *corev1.Pod) {
	key := podstate.KeyOf(pod)
	name := a.gangs.of[key]
	if known := a.gangs.members[name][key]; known == nil || known.UID != pod.UID {
		return
	}
	delete(a.gangs.of, key)
	delete(a.gangs.seen, name)
	delete(a.gangs.apart, name)
	if delete(a.gangs.members[name], key); len(a.gangs.members[name]) == 0 {
		delete(a.gangs.members, name)
	}
	a.enqueue(item{gang: name})
}

// GroupChanged says that a PodGroup says something else than before.
func (a *Allocator) GroupChanged(name group.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.gangs.seen, name); len(a.gangs.members[name]) > 0 {
		a.enqueue(item{gang: name})
	}
}

// GroupsChanged says that all PodGroups of an API may.
func (a *Allocator) GroupsChanged(api group.API) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.gangs.members {
		if name.API == api {
			delete(a.gangs.seen, name)
			a.enqueue(item{gang: name})
		}
	}
}

// itemOf is what is to be looked at for a pod: its gang, while it waits for us and may have
// to start with others. The caller holds mu.
func (a *Allocator) itemOf(pod *corev1.Pod) item {
	if name, is := group.Of(pod); is && podstate.Ready(pod) && !a.gangs.apart[name] {
		return item{gang: name}
	}
	return item{pod: podstate.KeyOf(pod)}
}

// part tells whether there are enough of a gang with any one of those that are due, and has
// them looked at one by one then. Who becomes due later is looked at as it comes, so that
// once is enough, unless the gang has changed since it was worked out, until a member is
// lost or another controller's: then others may count.
func (a *Allocator) part(g *gang) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !g.enough() {
		delete(a.gangs.apart, g.name)
		return false
	}
	if !a.gangs.apart[g.name] {
		if a.gangs.seen[g.name] == g {
			a.gangs.apart[g.name] = true
		}
		for _, pod := range g.due {
			a.enqueue(item{pod: podstate.KeyOf(pod)})
		}
	}
	return true
}

// unite has a member that was looked at by itself, and has to start with others, looked at
// with them.
func (a *Allocator) unite(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name, is := group.Of(pod); is {
		delete(a.gangs.apart, name)
	}
	a.enqueue(a.itemOf(pod))
}
