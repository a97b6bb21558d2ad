// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/missing"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// check asserts Invariant 1, in the ledgers and in the containers that run, and the
// one half of Invariant 6 that holds at every moment: what runs is granted, unless
// a fault took it away.
func (w *world) check() {
	w.checkHolds()
	for _, n := range w.nodes {
		ledger := w.ledger(n.name)
		for _, d := range ledger.Spec.Devices {
			w.checkSum(n.name, d.UUID, "ledger", d.Slices)
		}
		running := map[string][]v1alpha1.Slice{}
		for c, held := range n.running {
			for _, h := range held {
				running[h.uuid] = append(running[h.uuid], h.slice)
			}
			if granted := slicesOf(ledger, c); !w.disturbed[c.pod] && !slices.Equal(granted, held) {
				w.fail("Invariant 6: container %s of pod %s runs on %s with %v and is granted %v", c.name, c.pod, n.name, held, granted)
			}
		}
		for uuid, slices := range running {
			w.checkSum(n.name, uuid, "containers", slices)
		}
	}
}

func (w *world) checkSum(node, uuid, where string, slices []v1alpha1.Slice) {
	var core v1alpha1.Percent
	var mem v1alpha1.MiB
	once := map[container]bool{}
	for _, s := range slices {
		core, mem = core+s.Core-s.ReuseCore, mem+s.Mem-s.ReuseMem
		c := container{s.Pod, s.Ctr}
		if once[c] {
			w.fail("Invariant 1: %s, %s of %s: pod %s has two slices of one device for one container", where, uuid, node, s.Pod)
		}
		once[c] = true
	}
	if core > v1alpha1.WholeGPU || mem > w.node(node).ever[uuid] {
		w.fail("Invariant 1: %s: %s of %s has %d core and %d MiB granted: %+v", where, uuid, node, core, mem, slices)
	}
}

// checkGrants asserts that nothing was granted to a new pod on a device that, as the
// ledger said, something uses without being in the ledger.
func (w *world) checkGrants(before, after *v1alpha1.SliceLedger) {
	for _, d := range after.Spec.Devices {
		for _, s := range d.Slices {
			c := container{s.Pod, s.Ctr}
			if slices.Contains(slicesOf(before, c), runningOf(d.UUID, s)) {
				continue
			}
			if s.Asked != nil {
				w.overcommitted++
			}
			w.checkClass(c, d.UUID)
			if p := w.find(s.Pod); p == nil || !podstate.Gated(p) {
				continue
			}
			for _, used := range before.Status.Slices {
				on := func(h runningSlice) bool { return h.uuid == used.UUID }
				if used.UUID == d.UUID && !slices.ContainsFunc(slicesOf(before, container{used.Pod, used.Ctr}), on) {
					w.fail("Invariant 1: pod %s is granted a part of %s of %s, which container %s of pod %s uses", s.Pod, d.UUID, after.Name, used.Ctr, used.Pod)
				}
			}
		}
	}
}

// checkReleases asserts that a pod's slices were taken back for a reason.
func (r *replicaInTest) checkReleases(before, after *v1alpha1.SliceLedger) {
	w := r.world
	holds := grants.Pods(after)
	for uid := range grants.Pods(before) {
		p := w.find(uid)
		switch {
		case holds[uid] != "" || slices.Contains(before.Status.Released, uid) || grants.Held(before)[uid] != nil:
		case p == nil && w.wasBound[uid] != before.Name:
		case p != nil && (podstate.NeverRuns(p) || podstate.TargetNode(p) != "" && podstate.TargetNode(p) != before.Name):
		case uid == r.sawUnbindable:
			// Between the read and the write another leader may let it go, or the
			// scheduler bind it: it is then as if its slices had been lost.
			w.disturbed[uid] = true
		default:
			w.fail("Invariant 6: pod %s lost its slices on %s for no reason", uid, before.Name)
		}
	}
}

// checkRest asserts Invariant 6: what is granted is what runs, and no pod waits
// that would fit.
func (w *world) checkRest() {
	w.t.Helper()
	truth := index.New()
	for _, n := range w.nodes {
		truth.Put(w.ledger(n.name))
	}
	live := map[types.UID]bool{}
	for _, p := range w.live {
		live[p.UID] = !podstate.Terminal(p)
		held := truth.Holders(p.UID)
		demand, err := placement.DemandOf(podrequest.Of(p), w.classes)
		w.must(err)
		switch node := p.Spec.NodeName; {
		case podstate.Terminal(p):
		case isHostile(p) && node == "":
		case podstate.Gated(p):
			if len(held) > 0 {
				w.fail("Invariant 6: gated pod %s holds slices on %v", p.Name, held)
			}
			if w.together(p) || len(podstate.OtherGates(p)) > 0 {
				continue
			}
			for _, plan := range placement.Rank(demand, truth.Room()) {
				if w.accepts(plan.Node, p) && !w.keptFrom(p, demand, &plan) {
					w.fail("Invariant 6: pod %s waits but fits on %s", p.Name, plan.Node)
				}
			}
		case len(held) == 0 && podrequest.OnIdle(p):
			if node != "" && p.DeletionTimestamp == nil && len(w.budgets) == 0 {
				w.fail("Invariant 6: pod %s has no idle slice any more, and is not evicted", p.Name)
			}
		case len(held) == 0 && w.disturbed[p.UID]:
			// They are not there only for want of room.
			if node != "" && missing.Possible(p, w.ledger(podstate.TargetNode(p)), w.classes) {
				w.fail("Invariant 6: pod %s lost its slices on %s, and there is room for them", p.Name, node)
			}
			w.checkAdrift(p)
		case len(held) != 1 || held[0] != node || !grants.Serves(w.ledger(node), p.UID, demand.Shares):
			w.fail("Invariant 6: pod %s is on %q and holds slices on %v", p.Name, node, held)
		default:
			on := map[string]bool{}
			for name := range demand.Shares {
				for _, r := range slicesOf(w.ledger(node), container{p.UID, name}) {
					on[r.uuid] = true
				}
			}
			if demand.SameGPU && len(on) > 1 && !w.disturbed[p.UID] {
				w.fail("pod %s has to be on one device and is on %v", p.Name, on)
			}
			for name := range demand.Shares {
				c := container{p.UID, name}
				granted, held := slicesOf(w.ledger(node), c), w.node(node).running[c]
				if held == nil && slices.ContainsFunc(granted, func(r runningSlice) bool { return !w.node(node).works(r.uuid) || w.crowdedOut(w.node(node), r) }) {
					continue // the device was taken out of the node for good, or see checkAdrift
				}
				if !slices.Equal(granted, held) && w.disturbed[p.UID] && !missing.Possible(p, w.ledger(node), w.classes) {
					w.checkAdrift(p)
				} else if !slices.Equal(granted, held) {
					w.fail("Invariant 6: container %s of pod %s runs with %v and is granted %v", name, p.Name, held, granted)
				}
			}
		}
	}
	w.checkGangs()
	for _, n := range w.nodes {
		for uid := range grants.Pods(w.ledger(n.name)) {
			if !live[uid] {
				w.fail("Invariant 6: pod %s is over and holds slices on %s", uid, n.name)
			}
		}
		if l := w.ledger(n.name); len(l.Status.Released) > 0 {
			w.fail("Invariant 6: %s still shows as released: %v", n.name, l.Status.Released)
		}
	}
}

// checkAdrift asserts of a pod that runs without slices that it does so by the one fault
// that cannot be healed before it ends: they were lost before its node had said on which
// devices it runs, its placement did not say so either, as it had been moved, and others
// were granted the room meanwhile, of this container or of another of the pod that does
// not run: its slices come back together. Who was granted it may be kept from starting by
// that, and nobody else is granted anything on what runs.
func (w *world) checkAdrift(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	n, ledger := w.node(p.Spec.NodeName), w.ledger(p.Spec.NodeName)
	crowded, runs := false, n.runs(p.UID)
	full := func(uuid string, core v1alpha1.Percent, mem v1alpha1.MiB) bool {
		for _, d := range ledger.Spec.Devices {
			for _, s := range d.Slices {
				if d.UUID == uuid {
					core, mem = core+s.Core, mem+s.Mem
				}
			}
		}
		return core > v1alpha1.WholeGPU || mem > n.ever[uuid]
	}
	placed, err := v1alpha1.ParsePlacement(p.Annotations[v1alpha1.AnnotationPlacement])
	w.must(err)
	open := index.Room(ledger)
	// All that is to be on one device comes back to it together.
	type amount struct {
		core v1alpha1.Percent
		mem  v1alpha1.MiB
	}
	back := map[string]amount{}
	add := func(uuid string, core v1alpha1.Percent, mem v1alpha1.MiB) {
		sum := back[uuid]
		back[uuid] = amount{sum.core + core, sum.mem + mem}
		crowded = crowded || full(uuid, back[uuid].core, back[uuid].mem)
	}
	for name, c := range placed.Containers {
		if n.running[container{p.UID, name}] != nil {
			continue
		}
		for _, d := range c.Devices {
			add(d.UUID, d.Core, d.MemMiB)
			// Or a device of one that does not run was taken out of the node, which has no other
			// for it.
			if !slices.ContainsFunc(n.has, func(h hardware) bool { return h.uuid == d.UUID }) {
				crowded = crowded || !slices.ContainsFunc(n.has, func(h hardware) bool {
					return w.inClass(container{p.UID, name}, h.uuid) && open.Device(h.uuid) != nil && !full(h.uuid, d.Core, d.MemMiB) &&
						!slices.ContainsFunc(c.Devices, func(own v1alpha1.PlacedDevice) bool { return own.UUID == h.uuid })
				})
			}
		}
	}
	for c, held := range n.running {
		if c.pod != p.UID {
			continue
		}
		for _, h := range held {
			add(h.uuid, h.slice.Core, h.slice.Mem)
			for _, r := range w.replicas {
				if room, _ := r.allocator.cache.Index.On(n.name); room.Device(h.uuid) != nil {
					w.fail("Invariant 1: %s would grant %s of %s, which pod %s uses without a slice", r.name, h.uuid, n.name, p.Name)
				}
			}
		}
	}
	if runs && !crowded {
		w.fail("Invariant 6: pod %s runs on %s without slices, and no others are in its place", p.Name, n.name)
	}
}

// crowdedOut tells whether a slice cannot be used for what runs on its device without
// having slices there: see checkAdrift.
func (w *world) crowdedOut(n *nodeInTest, r runningSlice) bool {
	core, mem, adrift := r.slice.Core, r.slice.Mem, false
	for c, held := range n.running {
		for _, h := range held {
			if h.uuid == r.uuid {
				core, mem = core+h.slice.Core, mem+h.slice.Mem
				adrift = adrift || w.disturbed[c.pod] && !slices.Contains(slicesOf(w.ledger(n.name), c), h)
			}
		}
	}
	return adrift && (core > v1alpha1.WholeGPU || mem > n.ever[r.uuid])
}

// checkMemory asserts what replicas know at rest: of every device exactly what its ledger
// leaves, and nothing of pods that are gone or no longer wait.
func (w *world) checkMemory() {
	w.checkReserved()
	for _, r := range w.replicas {
		a := r.allocator
		for _, n := range w.nodes {
			if room, _ := a.cache.Index.On(n.name); room != nil {
				w.checkRoom(r.name, room)
			}
		}
		if n := a.cache.UnderWay() + a.queue.UnderWay(); n != 0 {
			w.fail("%s at rest: %d pods and items are under way", r.name, n)
		}
		for _, name := range a.queue.Unschedulable() {
			if p := a.cache.Pod(name); p == nil || !podstate.Gated(p) || w.find(p.UID) == nil {
				w.fail("%s at rest: pod %v waits", r.name, name)
			}
		}
		if searches := a.scheduler.Searches(); len(searches) > 0 {
			w.fail("%s at rest: searches go on: %v", r.name, searches)
		}
		for _, p := range a.cache.Pods() {
			if w.find(p.UID) == nil {
				w.fail("%s at rest: pod %s, which is gone, is known", r.name, p.Name)
			}
		}
		for _, uid := range slices.Concat(a.bindwatch.Remembered(), a.cache.Remembered(), a.queue.Remembered(), a.preemption.Remembered()) {
			if w.find(uid) == nil {
				w.fail("%s at rest: pod %s, which is gone, is remembered", r.name, uid)
			}
		}
	}
}

// checkRoom asserts that a node's devices are shown with what is left of them.
func (w *world) checkRoom(replica string, room *placement.Node) {
	for _, d := range room.Devices {
		core, mem := v1alpha1.WholeGPU, d.Mem
		for _, granted := range w.ledger(room.Name).Spec.Devices {
			for _, s := range granted.Slices {
				if granted.UUID == d.UUID {
					core, mem = core-s.Core+s.ReuseCore, mem-s.Mem+s.ReuseMem
				}
			}
		}
		if d.FreeCore != core || d.FreeMem != mem {
			w.fail("Invariant 6: %s shows %d core and %d MiB free of %s on %s, its ledger leaves %d and %d", replica, d.FreeCore, d.FreeMem, d.UUID, room.Name, core, mem)
		}
	}
}
