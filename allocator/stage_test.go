// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// stage is a world in which nothing happens by chance, with one replica whose
// clock and events the test holds.
type stage struct {
	*world
	*replicaInTest
	// returned are the API server's events that newEvents has returned.
	returned map[string]bool
}

// newStage has so many nodes. The edits come before its replica starts.
func newStage(t *testing.T, nodes int, edits ...func(*world)) *stage {
	t.Helper()
	w := newWorld(t, 1, nodes, 1, append(edits, func(w *world) { w.calm, w.events = true, record.NewFakeRecorder(10_000) })...)
	return &stage{world: w, replicaInTest: w.replicas[0], returned: map[string]bool{}}
}

// reserving is a world in which room is reserved for the first that waits after ten minutes.
func reserving(w *world) { w.reserveAfter = 10 * time.Minute }

// atHome is a world in which priorities count among pods of one namespace only.
func atHome(w *world) { w.priorityClasses = nil }

// budgeted has PodDisruptionBudgets.
func budgeted(budgets ...*policyv1.PodDisruptionBudget) func(*world) {
	return func(w *world) {
		for _, b := range budgets {
			w.budgets, w.objects = append(w.budgets, b), append(w.objects, b)
		}
	}
}

// add creates a pod that asks for one device.
func (s *stage) add(name string, core v1alpha1.Percent, mem v1alpha1.MiB, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := objects.Single(name, objects.Share(core, mem), edits...)
	s.create(p)
	return p
}

// addGang creates the members m0 and so on of gang g, which start together.
func (s *stage) addGang(n int, core v1alpha1.Percent, mem v1alpha1.MiB, edits ...func(*corev1.Pod)) {
	s.t.Helper()
	for i := range n {
		s.add(fmt.Sprint("m", i), core, mem, append([]func(*corev1.Pod){objects.InGang("g", n)}, edits...)...)
	}
}

// addPlain creates a pod without a share that is bound to a node.
func (s *stage) addPlain(name, node, cpu string, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c"}}}}
	objects.CPU(cpu)(p)
	for _, edit := range edits {
		edit(p)
	}
	s.create(p)
	return p
}

// pair adds a pod of two containers.
func (s *stage) pair(name string, a, b v1alpha1.Share, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := objects.Pod(name, map[string]v1alpha1.Share{"a": a, "b": b})
	for _, edit := range edits {
		edit(p)
	}
	s.create(p)
	return p
}

// work has everything seen and done that is due.
func (s *stage) work() {
	for len(s.watch) > 0 || s.queue.Len() > 0 {
		s.read()
		s.step()
	}
}

// pass lets time go by, and what was put off for no longer be done.
func (s *stage) pass(d time.Duration) {
	s.clock.Step(d)
	s.queue.ring()
	s.work()
}

// lookAgain has every waiting pod looked at again.
func (s *stage) lookAgain() {
	s.allocator.queue.MoveToActive(cache.OnAll)
	s.work()
}

// slow has all that the allocator does take time from now on.
func (s *stage) slow(each time.Duration) {
	s.time.WithTicker = &slowClock{s.world.clock, func() time.Duration { return each }}
}

// newEvents are the events since the last call.
func (s *stage) newEvents() []string {
	var events []string
	for len(s.events.Events) > 0 {
		events = append(events, objects.EventText(<-s.events.Events))
	}
	written := &corev1.EventList{}
	s.must(s.api.List(s.t.Context(), written))
	for _, e := range written.Items {
		if !s.returned[e.Name] {
			s.returned[e.Name] = true
			events = append(events, fmt.Sprintf("%s %s %s", e.Type, e.Reason, e.Message))
		}
	}
	return events
}

// says asserts that the events since the last call have these texts, and nothing else is said
// where there is no text.
func (s *stage) says(texts ...string) {
	s.t.Helper()
	sent := s.newEvents()
	if len(texts) == 0 && len(sent) > 0 {
		s.t.Errorf("events %q, want nothing", sent)
	}
	for _, text := range texts {
		if !strings.Contains(strings.Join(sent, "\n"), text) {
			s.t.Errorf("events %q, not %q", sent, text)
		}
	}
}

// expect asserts of each pod whether it waits, "name", or is placed: "name:node", or "name:*" for
// any node.
func (s *stage) expect(want string, why ...any) {
	s.t.Helper()
	var all []string
	for _, pod := range strings.Fields(want) {
		name, node, _ := strings.Cut(pod, ":")
		if at := podstate.TargetNode(s.get(name)); at != "" && node == "*" {
			name += ":*"
		} else if at != "" {
			name += ":" + at
		}
		all = append(all, name)
	}
	if got := strings.Join(all, " "); got != want {
		s.t.Fatalf("%s: placed %q, want %q; events %q", fmt.Sprint(why...), got, want, s.newEvents())
	}
}

// seats is where the pods are placed, as pod:node, with those that wait left out.
func (s *stage) seats(names ...string) string {
	s.t.Helper()
	var placed []string
	for _, name := range names {
		if at := podstate.TargetNode(s.get(name)); at != "" {
			placed = append(placed, name+":"+at)
		}
	}
	return strings.Join(placed, " ")
}

// atTheGate are those of the pods that wait.
func (s *stage) atTheGate(names ...string) string {
	s.t.Helper()
	return strings.Join(slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		p := s.get(name)
		return p == nil || !podstate.Gated(p)
	}), " ")
}

// together asserts that the pods are placed on one node, and says on which.
func (s *stage) together(names ...string) (at string) {
	s.t.Helper()
	at = podstate.TargetNode(s.get(names[0]))
	if got := s.seats(names...); at == "" || strings.Count(got, ":"+at) != len(names) {
		s.t.Errorf("placed %q, want all of %v on one node; events %q", got, names, s.newEvents())
	}
	return at
}

// booked asserts on which devices the ledgers grant slices to the pod.
func (s *stage) booked(pod types.UID, want ...string) {
	s.t.Helper()
	var on []string
	for _, n := range s.nodes {
		on = append(on, s.devicesOf(n.name, pod)...)
	}
	if !slices.Equal(on, want) {
		s.t.Fatalf("Invariants 1 and 6: pod %s has slices of %v, want %v; events %q", pod, on, want, s.newEvents())
	}
}

// reserved asserts for whom room is reserved.
func (s *stage) reserved(owners ...string) []*reservation.Reservation {
	s.t.Helper()
	all := s.allocator.reservations.All()
	var got []string
	for _, r := range all {
		got = append(got, r.Owner.Pod.Name+r.Owner.Gang.Name)
	}
	if !slices.Equal(got, owners) {
		s.t.Fatalf("reserved for %v, want %v: %+v", got, owners, all)
	}
	return all
}

// evicts asserts who was evicted, in any order.
func (s *stage) evicts(want ...types.UID) {
	s.t.Helper()
	if got := slices.Sorted(slices.Values(s.evicted)); !slices.Equal(got, want) {
		s.t.Fatalf("evicted %v, want %v", got, want)
	}
}

func (s *stage) get(name string) *corev1.Pod {
	s.t.Helper()
	return s.somePod(func(p *corev1.Pod) bool { return p.Name == name })
}

// edit changes a pod.
func (s *stage) edit(name string, edit func(*corev1.Pod)) {
	s.t.Helper()
	p := s.get(name)
	edit(p)
	s.put(p)
	s.work()
}

// update changes a pod's status.
func (s *stage) update(name string, edit func(*corev1.PodStatus)) {
	s.t.Helper()
	p := s.get(name)
	edit(&p.Status)
	s.putStatus(p)
	s.work()
}

// unschedulable is the scheduler refusing a pod.
func (s *stage) unschedulable(name string) {
	s.world.unschedulable(s.get(name))
	s.work()
}

// delete is a user who deletes a pod that goes on for its grace period.
func (s *stage) delete(name string) {
	s.t.Helper()
	s.must(s.remove(s.get(name)))
}

// forget has pods be gone, and what follows be done.
func (s *stage) forget(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.vanish(s.get(name))
	}
	s.work()
}

// cannotStart is a kubelet that cannot create a pod's container.
func (s *stage) cannotStart(name, ctr string) {
	s.t.Helper()
	s.update(name, func(st *corev1.PodStatus) {
		st.ContainerStatuses = []corev1.ContainerStatus{{Name: ctr, State: waitingFor("CreateContainerError")}}
	})
}

// bindNow is the scheduler that comes to this pod.
func (s *stage) bindNow(name string) {
	p := s.get(name)
	s.bindTo(p, podstate.TargetNode(p))
	s.notify(p, false)
	s.work()
}

// run binds the pods that are placed and starts them.
func (s *stage) run() {
	s.t.Helper()
	s.work()
	for slices.ContainsFunc(s.live, unbound) {
		s.bind()
	}
	for _, n := range s.nodes {
		n.watch()
		n.start(always)
		n.report()
	}
	s.work()
}

// end has the pods that are being deleted end, and their slices be released.
func (s *stage) end() {
	s.t.Helper()
	for _, n := range s.nodes {
		for range 8 {
			n.watch()
			n.stop()
			n.report()
		}
	}
	s.work()
	s.pass(queue.RefusedDelay)
}

// editLedger is somebody who edits a ledger by hand.
func (s *stage) editLedger(node string, edit func(*v1alpha1.SliceLedger)) {
	s.t.Helper()
	l := s.ledger(node)
	edit(l)
	s.put(l)
}

// setLedgerStatus is a node agent that says something else of its node.
func (s *stage) setLedgerStatus(node string, edit func(*v1alpha1.SliceLedgerStatus)) {
	s.t.Helper()
	l := s.ledger(node)
	edit(&l.Status)
	s.putStatus(l)
}

// grant is another leader that grants a pod so much of a device.
func (s *stage) grant(node string, pod types.UID, device int, core v1alpha1.Percent, mem v1alpha1.MiB) {
	s.t.Helper()
	s.editLedger(node, func(l *v1alpha1.SliceLedger) {
		s.must(grants.Grant(l, pod, "ns/"+string(pod), placement.Plan{Node: node, Grants: []placement.Grant{
			{Container: "c", UUID: gpu(node, device), Core: core, Mem: mem, Mode: v1alpha1.ModeLimiter}}}, time.Time{}))
	})
}

// use has somebody take so much of a device, each of another's.
func (s *stage) use(node string, device int, core v1alpha1.Percent) {
	s.t.Helper()
	s.grant(node, types.UID(fmt.Sprint("other", device)), device, core, 1)
	s.readAll()
}

// devicesOf are the devices that the ledger grants to the pod.
func (s *stage) devicesOf(node string, pod types.UID) []string {
	var on []string
	for _, d := range s.ledger(node).Spec.Devices {
		if slices.ContainsFunc(d.Slices, func(sl v1alpha1.Slice) bool { return sl.Pod == pod }) {
			on = append(on, d.UUID)
		}
	}
	return on
}

// on is where the pod's slices are, by container.
func (s *stage) on(name string) string {
	s.t.Helper()
	at := ""
	for _, ctr := range []string{"a", "b"} {
		for _, sl := range slicesOf(s.ledger("n0"), container{s.get(name).UID, ctr}) {
			at += sl.uuid + " "
		}
	}
	return strings.TrimSpace(at)
}

// setNode changes node n0, or what it is called, as the watch shows it; and takes it back.
func (s *stage) setNode(name string, edit func(*corev1.Node)) (undo func()) {
	before, now := objects.Node(name), objects.Node(name)
	edit(now)
	s.allocator.SetNode(before, now)
	return func() { s.allocator.SetNode(now, before) }
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

// zones puts the nodes into zones, one letter each.
func (s *stage) zones(letters string) {
	for i, zone := range strings.Split(letters, "") {
		s.setNode(fmt.Sprint("n", i), func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = zone })
	}
}

// killAt has the replica die at its nth request, before the API server has it or after.
func (w *world) killAt(n int, arrives bool) (killed *bool) {
	killed = new(bool)
	w.kill = func() (before, after bool) {
		if n--; n != 0 {
			return false, false
		}
		*killed = true
		return !arrives, arrives
	}
	return killed
}

// stepUntil has the worker go on until it was killed.
func (s *stage) stepUntil(killed *bool) {
	for s.readAll(); !*killed; {
		s.step()
	}
	s.kill = nil
}

func gpu(node string, i int) string { return fmt.Sprintf("GPU-%s-%d", node, i) }

// created is a pod that is created now.
func (s *stage) created(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock.Now()) }

// again is a pod that is made again now.
func (s *stage) again(p *corev1.Pod) {
	p.UID += "-again"
	s.created(p)
}

func neverPreempts(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }

// finalized is a pod that is there until its node has ended it.
func finalized(p *corev1.Pod) { p.Finalizers = []string{"example.com/finalized"} }

// otherGated has the pod wait for another system's gate too.
func otherGated(p *corev1.Pod) {
	p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: otherGate})
}

// endsAfter is a pod that ends so long after its start.
func endsAfter(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To(int64(d.Seconds())) }
}

func onDevice(uuid string) func(*corev1.Pod) {
	return objects.Annotated(v1alpha1.AnnotationGPUUUID, uuid)
}

// inZone has the pod's company in its zone instead of on its node.
func inZone(p *corev1.Pod) {
	p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = corev1.LabelTopologyZone
}

// about counts the events whose reason that is.
func about(sent []string, reason string) (n int) {
	for _, e := range sent {
		if strings.Contains(e, reason) {
			n++
		}
	}
	return n
}

// measured is what Prometheus is shown of one of the allocator's metrics; of a histogram its count,
// and its sum as name_sum.
func measured(t testing.TB, name string) float64 {
	t.Helper()
	return gathered(t)["vernier_allocator_"+name]
}
