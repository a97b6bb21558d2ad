// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// nodeInTest is a node: its kubelet, its runtime and its agent, by the rules of
// the real one.
type nodeInTest struct {
	world *world
	name  string
	// seen is the ledger that the agent's watch delivered last; it may be old.
	seen *v1alpha1.SliceLedger
	// said is the version of the ledger in which it last said something else of its
	// devices' health; what it has seen of before does not count.
	said string
	// running are the slices that containers were started with.
	running map[container][]runningSlice
	// ghosts are pods that were deleted by force; the kubelet does not know yet.
	ghosts []*corev1.Pod
	// fenced are pods that the agent starts nothing of any more.
	fenced map[types.UID]bool
	// unhealthy are the devices that do not answer.
	unhealthy map[string]bool
	// has is the hardware, and ever the sizes of all that it ever had.
	has  inventory
	ever map[string]v1alpha1.MiB
	// lost is a machine that is no more, or not for now.
	lost bool
}

type container struct {
	pod  types.UID
	name string
}

type runningSlice struct {
	uuid  string
	slice v1alpha1.Slice
	asked v1alpha1.Amounts
}

func newNode(w *world, name string) *nodeInTest {
	n := &nodeInTest{world: w, name: name, running: map[container][]runningSlice{}, fenced: map[types.UID]bool{}, unhealthy: map[string]bool{}, ever: map[string]v1alpha1.MiB{}}
	for _, d := range objects.ReadyLedger(name).Status.Devices {
		n.own(hardware{uuid: d.UUID, mem: d.Mem})
	}
	n.watch()
	return n
}

// containers are those that run, sorted.
func (n *nodeInTest) containers() []container {
	return slices.SortedFunc(maps.Keys(n.running), func(a, b container) int {
		return cmp.Or(cmp.Compare(a.pod, b.pod), cmp.Compare(a.name, b.name))
	})
}

func (n *nodeInTest) runs(pod types.UID) bool {
	for c := range n.running {
		if c.pod == pod {
			return true
		}
	}
	return false
}

// watch delivers the ledger as it is now to the agent.
func (n *nodeInTest) watch() { n.seen = n.world.ledger(n.name) }

// runningOf is a slice that can be compared, without what changes nothing of what runs.
func runningOf(uuid string, s v1alpha1.Slice) runningSlice {
	asked := s.Of()
	s.Asked, s.Since, s.Leaving = nil, nil, false
	return runningSlice{uuid, s, asked}
}

// slicesOf are what a ledger grants to a container, by device.
func slicesOf(ledger *v1alpha1.SliceLedger, c container) []runningSlice {
	var held []runningSlice
	for _, d := range ledger.Spec.Devices {
		for _, s := range d.Slices {
			if s.Pod == c.pod && s.Ctr == c.name {
				held = append(held, runningOf(d.UUID, s))
			}
		}
	}
	slices.SortFunc(held, func(a, b runningSlice) int { return strings.Compare(a.uuid, b.uuid) })
	return held
}

// leaves reports whether the pod's idle slice is being taken back.
func leaves(ledger *v1alpha1.SliceLedger, pod types.UID) bool {
	return slices.ContainsFunc(ledger.Spec.Devices, func(d v1alpha1.DeviceLedger) bool {
		return slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod && s.Leaving })
	})
}

// start is the kubelet that has containers created which do not run, each that
// chance says yes to.
func (n *nodeInTest) start(chance func() bool) {
	if n.lost {
		return
	}
	pods := slices.Clone(n.ghosts)
	for _, p := range n.world.live {
		if p.Spec.NodeName == n.name && !podstate.Terminal(p) {
			pods = append(pods, p)
		}
	}
	for _, p := range pods {
		for _, ctr := range p.Spec.Containers {
			c := container{p.UID, ctr.Name}
			if n.running[c] != nil || !chance() {
				continue
			}
			state, id := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, "id"
			if held, ok := n.create(p, c); ok {
				n.running[c] = held
			} else {
				state, id = waitingFor("CreateContainerError"), ""
			}
			n.tell(p, ctr.Name, state, id)
		}
	}
}

// create is the agent in CreateContainer; not ok when it refuses the container.
func (n *nodeInTest) create(p *corev1.Pod, c container) (held []runningSlice, ok bool) {
	w := n.world
	if n.fenced[p.UID] {
		return nil, false
	}
	ledger := n.seen
	if leaves(ledger, p.UID) {
		return nil, false
	}
	held = slicesOf(ledger, c)
	if behind(ledger, n.said) || !placedOn(p, c.name, held) || !shownWell(ledger, held) {
		ledger = w.ledger(n.name)
		held = slicesOf(ledger, c)
	}
	if leaves(ledger, p.UID) {
		return nil, false
	}
	if held == nil {
		if !w.disturbed[p.UID] && !w.over(p.UID) {
			w.fail("Invariant 6: pod %s was ungated to %s, whose ledger has no slices for its container %s", p.Name, n.name, c.name)
		}
		return nil, false
	}
	if !shownWell(ledger, held) {
		return nil, false
	}
	for _, h := range held {
		if !n.works(h.uuid) || !n.room(p, h) {
			return nil, false
		}
	}
	return held, true
}

// behind tells whether a ledger is older than a version of it.
func behind(ledger *v1alpha1.SliceLedger, version string) bool {
	c, err := resourceversion.CompareResourceVersion(ledger.ResourceVersion, version)
	return err == nil && c < 0
}

// placedOn tells whether the slices are where the pod says that it was placed. They may
// have been taken back before it was ungated, and others granted.
func placedOn(p *corev1.Pod, ctr string, held []runningSlice) bool {
	placed, err := v1alpha1.ParsePlacement(p.Annotations[v1alpha1.AnnotationPlacement])
	if err != nil {
		return false
	}
	devices := placed.Containers[ctr].Devices
	for _, h := range held {
		if !slices.ContainsFunc(devices, func(d v1alpha1.PlacedDevice) bool { return d.UUID == h.uuid }) {
			return false
		}
	}
	return len(held) == len(devices)
}

// shownWell tells whether the ledger says that the devices are well, so that nothing
// is moved off them.
func shownWell(ledger *v1alpha1.SliceLedger, held []runningSlice) bool {
	return !slices.ContainsFunc(held, func(h runningSlice) bool { return !index.Healthy(ledger, h.uuid) })
}

// room tells whether the device has room beside what runs on it. Without faults it
// always has.
func (n *nodeInTest) room(p *corev1.Pod, h runningSlice) bool {
	core, mem, disturbed := h.slice.Core, h.slice.Mem, n.world.disturbed[p.UID]
	for c, others := range n.running {
		for _, o := range others {
			if o.uuid == h.uuid {
				core, mem = core+o.slice.Core, mem+o.slice.Mem
				disturbed = disturbed || n.world.disturbed[c.pod]
			}
		}
	}
	fits := core <= v1alpha1.WholeGPU && mem <= n.ever[h.uuid]
	if !fits && !disturbed {
		n.world.fail("Invariant 1: %s of %s is granted to pod %s, and what runs on it leaves no room", h.uuid, n.name, p.Name)
	}
	return fits
}

// tell is the kubelet that writes a container's state, if the pod is still there.
func (n *nodeInTest) tell(p *corev1.Pod, name string, state corev1.ContainerState, id string) {
	w := n.world
	if p = w.find(p.UID); p == nil {
		return
	}
	i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		i = len(p.Status.ContainerStatuses)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name})
	}
	s := &p.Status.ContainerStatuses[i]
	if was := s.State.Waiting; was != nil && state.Waiting != nil && was.Reason == state.Waiting.Reason {
		return
	}
	s.State = state
	if id != "" {
		s.ContainerID = id
	}
	w.setStatus(p)
}

func waitingFor(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

// crash ends a container that the kubelet will start again.
func (n *nodeInTest) crash() {
	if p := n.world.somePod(func(p *corev1.Pod) bool { return n.runs(p.UID) }); p != nil {
		for _, ctr := range p.Spec.Containers {
			if c := (container{p.UID, ctr.Name}); n.running[c] != nil {
				delete(n.running, c)
				n.tell(p, c.name, waitingFor("CrashLoopBackOff"), "")
				return
			}
		}
	}
}

// stop is the kubelet that has seen the deletion of a pod: it ends its containers,
// and says that it is gone once they are.
func (n *nodeInTest) stop() {
	w := n.world
	for _, c := range n.containers() {
		if p := w.find(c.pod); p == nil || p.DeletionTimestamp != nil {
			n.end(c.pod)
			return
		}
	}
	if p := w.somePod(func(p *corev1.Pod) bool { return p.Spec.NodeName == n.name && p.DeletionTimestamp != nil }); p != nil {
		w.vanish(p)
		return
	}
	n.ghosts = nil
}

// end ends what runs of a pod.
func (n *nodeInTest) end(pod types.UID) {
	for c := range n.running {
		if c.pod == pod {
			delete(n.running, c)
		}
	}
	n.ghosts = slices.DeleteFunc(n.ghosts, func(p *corev1.Pod) bool { return p.UID == pod })
}

// complete has some pod do its work.
func (n *nodeInTest) complete() {
	p := n.world.somePod(func(p *corev1.Pod) bool { return n.runs(p.UID) && !podstate.Terminal(p) })
	if p != nil {
		n.succeed(p)
	}
}

// succeed is a pod whose containers have done their work.
func (n *nodeInTest) succeed(p *corev1.Pod) {
	n.end(p.UID)
	p.Status.Phase = corev1.PodSucceeded
	for i := range p.Status.ContainerStatuses {
		p.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(n.world.now())}}
	}
	n.world.setStatus(p)
}

// sicken flips the health of a device.
func (n *nodeInTest) sicken() {
	uuid := n.has[n.world.rand.Intn(len(n.has))].uuid
	n.unhealthy[uuid] = !n.unhealthy[uuid]
}

// report is the agent that makes its ledger where there is none, and else
// publishes what it sees: devices, containers, and the pods that are over.
func (n *nodeInTest) report() {
	w := n.world
	if n.lost {
		return
	}
	l := w.ledger(n.name)
	if l.ResourceVersion == "" {
		w.recreate(n.name)
		return
	}
	for uid := range grants.Pods(n.seen) {
		p := w.find(uid)
		if leaves(n.seen, uid) {
			// The kubelet does not know yet, and has its containers made again.
			for c := range n.running {
				if c.pod == uid {
					delete(n.running, c)
				}
			}
			if n.fenced[uid] = true; !w.disturbed[uid] {
				w.disturbed[uid] = true
				w.reclaimed++
			}
		}
		if w.over(uid) && !n.runs(uid) || w.hasty && p != nil && p.DeletionTimestamp != nil {
			n.fenced[uid] = true
		}
	}
	var released []types.UID
	holders := grants.Pods(n.seen)
	for uid := range n.fenced {
		if holders[uid] == "" && !n.runs(uid) {
			delete(n.fenced, uid)
		} else {
			released = append(released, uid)
		}
	}
	slices.Sort(released)
	var used []v1alpha1.SliceStatus
	for _, c := range n.containers() {
		for _, h := range n.running[c] {
			used = append(used, v1alpha1.SliceStatus{Pod: c.pod, Ctr: c.name, UUID: h.uuid, Container: "id", Mode: v1alpha1.ModeLimiter})
		}
	}
	before := fmt.Sprint(l.Status)
	if len(l.Status.Devices) == 0 {
		objects.WithStatus(l)
	}
	devices := l.Status.Devices
	l.Status.Devices = n.list()
	l.Status.Released, l.Status.Slices = released, used
	if fmt.Sprint(l.Status) == before {
		return
	}
	w.must(w.api.Status().Update(context.Background(), l))
	if !equality.Semantic.DeepEqual(devices, l.Status.Devices) {
		n.said = l.ResourceVersion
	}
	w.notify(l, false)
}
