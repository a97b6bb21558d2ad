// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"flag"
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

var (
	labs     = flag.Int("labs", 4, "random clusters that TestTheSchedulerAgrees looks at, with 24 pods each")
	firstLab = flag.Int64("first-lab", 1, "the seed of the first of them")
	together = flag.Int("together", 1, "how many of the pods come at a time")
)

// Of the pods of a lab the last are alike: see alikePod.
const podsPerLab, alikePerLab = 24, 4

// inLabs runs something in each lab, beside an allocator and the real kube-scheduler.
func inLabs(t *testing.T, run func(*lab, *tally)) (all tally) {
	t.Helper()
	s := startWith(t, nil)
	s.must(s.Create(t.Context(), newCardClass()))
	apiserver.StartScheduler(t, s.cfg)
	s.run()
	cfg := rest.CopyConfig(s.cfg)
	cfg.QPS = -1
	api, err := client.NewWithWatch(cfg, client.Options{Scheme: objects.Scheme(t)})
	s.must(err)
	for i := range *labs {
		seed := *firstLab + int64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { run(newLab(t, s, api, seed), &all) })
	}
	return all
}

// Invariant 7, against the real kube-scheduler: random nodes and pods, with taints,
// selectors, affinities, spreads, ports, volumes, other drivers' devices and resources. Whatever the allocator
// pins, the scheduler binds; and where the allocator says that the scheduler would
// refuse all nodes that have the devices, it does refuse them.
func TestTheSchedulerAgrees(t *testing.T) {
	all := inLabs(t, (*lab).run)
	t.Logf("%+v", all)
	// Of pods that come together none is challenged.
	if n := *labs; n > 2 && (all.Bound < 4*n || *together == 1 && all.Refused < 2*n) {
		t.Errorf("%+v: the test no longer looks at both", all)
	}
}

// tally is what became of pods.
type tally struct {
	// Bound by the scheduler to their pins. Waiting for room, and Refused everywhere by
	// the allocator: for so many of them the scheduler was asked about a node that it
	// might have taken.
	Bound, Waiting, Refused, Asked int
}

// lab is a random cluster within the test's: its nodes are for its pods only.
type lab struct {
	*testing.T
	*rand.Rand
	client.WithWatch
	name  string
	nodes []string
	// pods and events of the lab, as they change.
	pods, events watch.Interface
	// seen are the newest versions of the pods; told is the last warning of each.
	seen map[string]*corev1.Pod
	sent map[types.UID]*corev1.Event
}

func newLab(t *testing.T, s *server, api client.WithWatch, seed int64) *lab {
	l := &lab{T: t, Rand: rand.New(rand.NewSource(seed)), WithWatch: api, name: fmt.Sprintf("lab-%d", seed),
		seen: map[string]*corev1.Pod{}, sent: map[types.UID]*corev1.Event{}}
	ctx := t.Context()
	l.must(l.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.name, Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}}))
	var err1, err2 error
	l.pods, err1 = l.Watch(ctx, &corev1.PodList{}, client.InNamespace(l.name))
	l.events, err2 = l.Watch(ctx, &corev1.EventList{}, client.InNamespace(l.name))
	l.must(err1)
	l.must(err2)
	t.Cleanup(l.pods.Stop)
	t.Cleanup(l.events.Stop)
	for i := range 8 {
		name := fmt.Sprintf("%s-%d", l.name, i)
		l.nodes = append(l.nodes, name)
		s.addNode(name, l.anyNode)
		l.limitVolumes(ctx, name)
	}
	l.addVolumes(ctx)
	l.offerCards()
	return l
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// patience with what must happen; slow machines are given time.
const patience = 60 * time.Second

// await takes in what happens until done says so; false when that takes too long.
func (l *lab) await(done func() bool) bool {
	late := time.After(patience)
	for !done() {
		select {
		case e := <-l.pods.ResultChan():
			if p, is := e.Object.(*corev1.Pod); is {
				l.seen[p.Name] = p
				if e.Type == watch.Deleted {
					delete(l.seen, p.Name)
				}
			}
		case e := <-l.events.ResultChan():
			// A pin may be refused for as long as the scheduler has not seen what the
			// allocator saw.
			if sent, is := e.Object.(*corev1.Event); is && sent.Type == corev1.EventTypeWarning &&
				sent.Source.Component == notify.Component && sent.Reason != notify.ReasonPinRefused {
				l.sent[sent.InvolvedObject.UID] = sent
			}
		case <-late:
			return false
		}
	}
	return true
}

// run has pods come one by one, each when it is known what becomes of those before it.
// Pods that come together are decided on before the scheduler has bound any of them. It
// binds them in an order of its own, in which a pin may be a bad one after all: to be
// healed, and so no part of what always holds.
func (l *lab) run(all *tally) {
	l.acquaint()
	for made := 0; made < podsPerLab; {
		var written, created []*corev1.Pod
		for range *together {
			p := l.anyPod(fmt.Sprintf("p%d", made))
			if made >= podsPerLab-alikePerLab {
				p = l.alikePod(p.Name)
			}
			written, created = append(written, p), append(created, p.DeepCopy())
			made++
		}
		for _, p := range created {
			l.must(l.Create(l.Context(), p))
		}
		for i, p := range created {
			if l.settle(p, all); !l.bound(p.Name) && len(created) == 1 {
				l.challenge(written[i], all)
			}
		}
	}
	if !l.await(func() bool { return len(l.stuck()) == 0 }) {
		for _, name := range l.stuck() {
			l.Errorf("Invariant 7: pod %s was ungated, and the scheduler does not bind it: %s", name, l.describe(name))
		}
	}
}

// settle returns when it is known what becomes of the pod.
func (l *lab) settle(p *corev1.Pod, all *tally) {
	l.Helper()
	if !l.await(func() bool { return l.bound(p.Name) || l.sent[p.UID] != nil }) {
		l.Fatalf("Invariant 7: pod %s is neither bound nor sent why not: %s", p.Name, l.describe(p.Name))
	}
	switch sent := l.sent[p.UID]; {
	case l.bound(p.Name):
		all.Bound++
	case sent.Reason != notify.ReasonWaiting:
		l.Fatalf("pod %s: %s: %s", p.Name, sent.Reason, sent.Message)
	default:
		all.Waiting++
	}
}

// acquaint returns when allocator and scheduler know all nodes: each binds a pod that
// only that node is right for.
func (l *lab) acquaint() {
	for _, node := range l.nodes {
		p := objects.Pod("on-"+node, map[string]v1alpha1.Share{"a": objects.Share(1, 1)})
		p.Namespace, p.Spec.NodeSelector = l.name, map[string]string{l.host(): node}
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		l.must(l.Create(l.Context(), p))
	}
	for _, node := range l.nodes {
		if name := "on-" + node; !l.await(func() bool { return l.bound(name) }) {
			l.Fatalf("allocator and scheduler do not take up node %s: %s", node, l.describe(name))
		}
	}
}

func (l *lab) bound(name string) bool { return l.seen[name] != nil && l.seen[name].Spec.NodeName != "" }

// stuck are the pods that were let go and are not bound.
func (l *lab) stuck() (names []string) {
	for name, p := range l.seen {
		if !podstate.Gated(p) && p.Spec.NodeName == "" {
			names = append(names, name)
		}
	}
	return names
}

func (l *lab) describe(name string) string {
	p := l.seen[name]
	if p == nil {
		return "it is gone"
	}
	text := fmt.Sprintf("pinned by %+v, conditions %+v", p.Spec.Affinity, p.Status.Conditions)
	if sent := l.sent[p.UID]; sent != nil {
		text += "; " + sent.Message
	}
	return text
}

// challenge asks the scheduler about a pod that the allocator lets wait, with a twin
// that asks for no devices. Where it goes to a node that has the devices, the
// allocator was too strict, unless the pin is what makes the difference.
func (l *lab) challenge(p *corev1.Pod, all *tally) {
	demand, err := placement.DemandOf(podrequest.Of(p), nil)
	l.must(err)
	node, goes := l.tryTwin(p, "")
	if !goes {
		all.Refused++
		return
	}
	ledger := &v1alpha1.SliceLedger{}
	l.must(l.Get(l.Context(), client.ObjectKey{Name: node}, ledger))
	if _, fits := placement.Fit(demand, index.Room(ledger)); !fits {
		return
	}
	all.Asked++
	if _, goes := l.tryTwin(p, node); !goes {
		all.Refused++
		return
	}
	// What the allocator saw may have changed just then; it looks again by itself.
	if !l.await(func() bool { return l.bound(p.Name) }) {
		l.Errorf("the scheduler takes pod %s on %s, the allocator does not: %s", p.Name, node, l.describe(p.Name))
	}
}

// tryTwin has the scheduler decide on the pod as its owner wrote it, without devices,
// pinned to a node or not.
func (l *lab) tryTwin(p *corev1.Pod, node string) (at string, goes bool) {
	l.Helper()
	ctx := l.Context()
	twin := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name + "-twin", Labels: p.Labels}, Spec: *p.Spec.DeepCopy()}
	twin.Spec.SchedulingGates = nil
	for i := range twin.Spec.Containers {
		r := &twin.Spec.Containers[i].Resources
		for _, name := range []corev1.ResourceName{v1alpha1.ResourceCore, v1alpha1.ResourceMemPercent, v1alpha1.ResourceMemMiB} {
			delete(r.Limits, name)
			delete(r.Requests, name)
		}
	}
	if node != "" {
		twin.Spec.Affinity = podstate.PinTo(twin.Spec.Affinity, node)
	}
	l.must(l.Create(ctx, twin))
	if !l.await(func() bool {
		at, goes = "", l.bound(twin.Name)
		return goes || l.seen[twin.Name] != nil && len(l.seen[twin.Name].Status.Conditions) > 0
	}) {
		l.Fatalf("the scheduler says nothing about pod %s", twin.Name)
	}
	at = l.seen[twin.Name].Spec.NodeName
	l.must(l.Delete(ctx, twin, client.GracePeriodSeconds(0)))
	if !l.await(func() bool { return l.seen[twin.Name] == nil }) {
		l.Fatalf("pod %s does not go away", twin.Name)
	}
	l.freeCards(twin.UID)
	return at, goes
}
