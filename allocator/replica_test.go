// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

var errCrash = errors.New("the process is gone")

// replicaInTest is an allocator that believes that it leads, whose watch is late
// and whose calls may fail, arrive without an answer, or end the process.
type replicaInTest struct {
	world     *world
	name      string
	allocator *Allocator
	queue     *queueInTest
	// watch is what the API server sent and the replica has not read.
	watch []change
	stop  context.CancelFunc
	dead  bool
	// busy is true within a step: a replica has one worker.
	busy bool
	// sawUnbindable is the pod that was read last in this step, if it was gated then,
	// or refused by the scheduler.
	sawUnbindable types.UID
	// knew is the world's change up to which it had read all of pods when this step began,
	// and knewLedgers that of ledgers.
	knew, knewLedgers int
	// sent is what it knew of ledgers when it first let go a member of a gang in this step.
	sent map[podrequest.Group]int
	// evictsFor are the reservations for which it has evicted pods in this step.
	evictsFor []*reservation.Reservation
	// logged, if set, is told of each line of the log.
	logged func(line string)
	// time is the allocator's clock.
	time *clockInTest
	// updates and patches are how many of these requests it has made.
	updates, patches int
	// refuse is the answer to every write, while it is not nil.
	refuse error
	// refuseFor, if set, answers a write of an object, by what it is: update, patch, delete, evict,
	// or the name of a subresource.
	refuseFor func(what string, obj client.Object) error
	// patchOther, if set, is the answer to a patch of an object that is not of Kubernetes or ours.
	patchOther func(*unstructured.Unstructured, client.Patch) error
	// refuseEvents, if set, answers events.
	refuseEvents func(context.Context) error
}

type change struct {
	obj     client.Object
	deleted bool
	// at is which of the world's changes it is.
	at int
}

// restart begins a new process: it lists everything and leads.
func (r *replicaInTest) restart() {
	if r.stop != nil {
		r.stop()
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.world.t.Cleanup(stop)
	filters := objects.Filters(ctx, r.world.t, r.world.objects...)
	r.time = &clockInTest{r.world.clock}
	log := funcr.New(func(_, line string) {
		if r.logged != nil {
			r.logged(line)
		}
	}, funcr.Options{})
	r.allocator = New(Config{
		Client: interceptor.NewClient(r.world.api, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
				return r.call(func() error {
					err := c.Get(ctx, key, obj, o...)
					if p, is := obj.(*corev1.Pod); is && err == nil && (podstate.Gated(p) || podstate.Unbound(p)) {
						r.sawUnbindable = p.UID
					}
					return err
				})
			},
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
				r.updates++
				return r.write("update", obj, func() error {
					before := r.world.ledger(obj.GetName())
					if r.world.lastWriteWins {
						obj.SetResourceVersion(before.ResourceVersion)
					}
					err := c.Update(ctx, obj, o...)
					if err == nil {
						r.world.checkGrants(before, obj.(*v1alpha1.SliceLedger))
						r.checkReleases(before, obj.(*v1alpha1.SliceLedger))
						r.decide(before, obj.(*v1alpha1.SliceLedger))
					}
					return err
				})
			},
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
				if r.refuseEvents != nil {
					return r.refuseEvents(ctx)
				}
				return r.write("create", obj, func() error { return c.Create(ctx, obj, o...) })
			},
			Delete: func(ctx context.Context, _ client.WithWatch, obj client.Object, o ...client.DeleteOption) error {
				return r.call(func() error {
					if err := r.refuses("delete", obj); err != nil {
						return err
					}
					return r.world.remove(obj.(*corev1.Pod), o...)
				})
			},
			SubResourceCreate: func(ctx context.Context, _ client.Client, _ string, obj, eviction client.Object, _ ...client.SubResourceCreateOption) error {
				r.checkEvicts(eviction.(*policyv1.Eviction))
				return r.call(func() error {
					if err := r.refuses("evict", obj); err != nil {
						return err
					}
					return r.world.evict(eviction.(*policyv1.Eviction))
				})
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, kind string, obj client.Object, p client.Patch, o ...client.SubResourcePatchOption) error {
				if u, other := obj.(*unstructured.Unstructured); other {
					return r.patchOther(u, p)
				}
				return r.write(kind, obj, func() error { return c.SubResource(kind).Patch(ctx, obj, p, o...) })
			},
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, o ...client.PatchOption) error {
				if slices.Contains(o, client.PatchOption(client.DryRunAll)) {
					if r.world.kill == nil {
						return r.refuses("patch", obj) // a fault in it is as one in the patch itself
					}
					return r.call(func() error { return r.refuses("patch", obj) })
				}
				r.patches++
				r.checkLetGo(obj.GetNamespace() + "/" + obj.GetName())
				return r.write("patch", obj, func() error {
					err := c.Patch(ctx, obj, p, o...)
					if err == nil {
						r.letGo(obj.(*corev1.Pod))
					}
					return err
				})
			},
		}),
		Filters: filters, Events: cmp.Or(r.world.events, &record.FakeRecorder{}), Clock: r.time, Log: log, Groups: cmp.Or(r.world.sizes, &podgroup.Sizes{}), Classes: r.world.classes, Requests: 1,
		PodTemplates: templates(r.world.classes), Enabled: func(string) (enabled, known bool) { return true, true },
		Overcommit: func(string) (v1alpha1.Percent, bool) { return 150, r.world.idle },
		Preemption: r.world.preemption, ReserveAfter: r.world.reserveAfter, Defragment: r.world.defragment, PriorityClasses: r.world.priorityClasses,
	})
	r.queue = &queueInTest{clock: r.world.clock, later: map[queue.Item]time.Time{}}
	r.watch, r.dead, r.busy, r.sent = nil, false, false, map[podrequest.Group]int{}
	r.list()
	r.allocator.begin(context.Background(), r.queue)
}

// list takes in everything there is, as a new watch does.
func (r *replicaInTest) list() {
	r.watch = nil
	ctx := context.Background()
	for _, n := range r.world.nodes {
		node := &corev1.Node{}
		if err := r.world.api.Get(ctx, client.ObjectKey{Name: n.name}, node); err == nil {
			r.allocator.SetNode(nil, node)
		} else {
			r.allocator.DeleteNode(objects.Node(n.name))
		}
		if l := r.world.ledger(n.name); l.ResourceVersion != "" {
			r.allocator.SetLedger(l)
		} else if known := r.allocator.cache.Index.Ledger(n.name); known != nil {
			r.allocator.DeleteLedger(known)
		}
	}
	for _, known := range r.allocator.cache.Pods() {
		if r.world.find(known.UID) == nil {
			r.allocator.DeletePod(known, false)
		}
	}
	for _, p := range r.world.live {
		r.allocator.SetPod(p)
	}
}

// read takes in the oldest change, and at times repeats it.
func (r *replicaInTest) read() {
	if len(r.watch) == 0 {
		return
	}
	c := r.next()
	times := 1
	if !r.world.calm && r.world.rand.Intn(5) == 0 {
		times = 2
	}
	for range times {
		switch obj := c.obj.(type) {
		case *v1alpha1.SliceLedger:
			if c.deleted {
				r.allocator.DeleteLedger(obj)
			} else {
				r.allocator.SetLedger(r.sees(obj))
			}
		case *corev1.Node:
			if c.deleted {
				r.allocator.DeleteNode(obj)
			} else {
				r.allocator.SetNode(nil, obj)
			}
		case *corev1.Pod:
			if c.deleted {
				r.allocator.DeletePod(obj, true)
			} else {
				r.allocator.SetPod(obj)
			}
		}
	}
}

// sees is the ledger as the replica takes it. A blind one takes no notice of what another
// leader took back.
func (r *replicaInTest) sees(l *v1alpha1.SliceLedger) *v1alpha1.SliceLedger {
	known := r.allocator.cache.Index.Ledger(l.Name)
	if !r.world.blind || known == nil {
		return l
	}
	for uid := range grants.Pods(known) {
		if p := r.world.find(uid); p != nil && podstate.Gated(p) && grants.Pods(l)[uid] == "" {
			l = l.DeepCopy()
			l.Spec = known.Spec
			return l
		}
	}
	return l
}

// next takes the oldest change of some kind of object: each kind has a watch of its
// own, and one may be far behind another. Within a kind the order stays: an API server
// sends the changes of a resource in the order in which they were stored, so no version
// of an object comes after a later one. What does come late is what a watch tells of a
// ledger after the answer to a write of it, and what was known before a new list.
func (r *replicaInTest) next() change {
	kind := fmt.Sprintf("%T", r.watch[r.world.rand.Intn(len(r.watch))].obj)
	i := slices.IndexFunc(r.watch, func(c change) bool { return fmt.Sprintf("%T", c.obj) == kind })
	c := r.watch[i]
	r.watch = slices.Delete(r.watch, i, i+1)
	return c
}

// step has the worker look at one queue.Item, if there is one.
func (r *replicaInTest) step() bool {
	if r.busy || r.queue.Len() == 0 {
		return false
	}
	r.busy, r.sawUnbindable, r.knew, r.knewLedgers, r.sent = true, "", r.world.changes, r.readLedgers(), map[podrequest.Group]int{}
	r.evictsFor = nil
	for _, c := range r.watch {
		if _, is := c.obj.(*corev1.Pod); is {
			r.knew = min(r.knew, c.at-1)
		}
	}
	ok := r.allocator.step(context.Background())
	r.busy = false
	if r.dead {
		r.restart()
	}
	return ok
}

// readLedgers is the world's change up to which it has read all of ledgers, by its watch or
// in the answer to a request.
func (r *replicaInTest) readLedgers() int {
	known := r.world.changes
	for _, c := range r.watch {
		if l, is := c.obj.(*v1alpha1.SliceLedger); is {
			if has := r.allocator.cache.Index.Ledger(l.Name); c.deleted || has == nil || has.UID != l.UID || behind(has, l.ResourceVersion) {
				known = min(known, c.at-1)
			}
		}
	}
	return known
}

// call is one request of this replica. Anything may happen before it: the other
// replicas go on, the watch delivers, users and nodes act.
func (r *replicaInTest) call(do func() error) (err error) {
	w := r.world
	if r.dead {
		return errCrash
	}
	if w.kill != nil {
		before, after := w.kill()
		if r.dead = before || after; before {
			return errCrash
		}
		if after {
			defer func() { err = errCrash }()
		}
	}
	if !w.calm {
		for range w.rand.Intn(4) {
			w.act()
		}
		if w.rand.Intn(60) == 0 {
			r.dead = true
			return errCrash
		}
		if w.rand.Intn(60) == 0 {
			return apierrors.NewServerTimeout(schema.GroupResource{}, "any", 0)
		}
	}
	return do()
}

// write is a call that changes something, and that may fail in every way.
func (r *replicaInTest) write(what string, obj client.Object, do func() error) error {
	w := r.world
	return r.call(func() error {
		if err := r.refuses(what, obj); err != nil {
			return err
		}
		if !w.calm && w.rand.Intn(40) == 0 {
			return apierrors.NewInternalError(errors.New("injected"))
		}
		often := 25
		if w.gangsOnly {
			often = 6 // what happens to a half of them is the point
		}
		if !w.calm && w.rand.Intn(often) == 0 {
			return apierrors.NewConflict(schema.GroupResource{}, obj.GetName(), errors.New("injected"))
		}
		err := do()
		if err == nil {
			w.notify(obj, false)
		}
		w.check()
		switch {
		case !w.calm && w.rand.Intn(25) == 0:
			return apierrors.NewTimeoutError("the answer was lost", 0)
		case !w.calm && w.rand.Intn(60) == 0:
			r.dead = true
			return errCrash
		}
		return err
	})
}

// refuses is the answer to a write that is refused, nil for another.
func (r *replicaInTest) refuses(what string, obj client.Object) error {
	if r.refuse == nil && r.refuseFor != nil {
		return r.refuseFor(what, obj)
	}
	return r.refuse
}

// queueInTest is a work queue without goroutines: what is due later waits until its
// time has come, or until flush.
type queueInTest struct {
	workqueue.TypedRateLimitingInterface[queue.Item]
	clock clock.PassiveClock
	due   []queue.Item
	later map[queue.Item]time.Time
	// out are the items that are looked at now, true for items that are to be again.
	out map[queue.Item]bool
	// taken, if set, is told of each item that is looked at.
	taken func(queue.Item)
}

func (q *queueInTest) Add(it queue.Item) {
	if _, out := q.out[it]; out {
		q.out[it] = true
	} else if !slices.Contains(q.due, it) {
		q.due = append(q.due, it)
	}
}

// AddAfter keeps the earliest time, as the real one does.
func (q *queueInTest) AddAfter(it queue.Item, delay time.Duration) {
	if at, waits := q.later[it]; !waits || q.clock.Now().Add(delay).Before(at) {
		q.later[it] = q.clock.Now().Add(delay)
	}
}

// AddRateLimited has no time of its own: how long the pauses are is the real queue's.
func (q *queueInTest) AddRateLimited(it queue.Item) { q.AddAfter(it, 0) }

// NumRequeues counts none.
func (q *queueInTest) NumRequeues(queue.Item) int { return 0 }

func (q *queueInTest) Get() (queue.Item, bool) {
	it := q.due[0]
	if q.out == nil {
		q.out = map[queue.Item]bool{}
	}
	q.out[it] = false
	if q.due = q.due[1:]; q.taken != nil {
		q.taken(it)
	}
	return it, false
}

func (q *queueInTest) Len() int { return len(q.due) }

// Done has an item that was added since Get looked at again.
func (q *queueInTest) Done(it queue.Item) {
	again := q.out[it]
	if delete(q.out, it); again {
		q.Add(it)
	}
}

func (q *queueInTest) Forget(queue.Item) {}

// ring adds what is due by now.
func (q *queueInTest) ring() { q.take(func(at time.Time) bool { return !at.After(q.clock.Now()) }) }

// flush adds all of it.
func (q *queueInTest) flush() { q.take(func(time.Time) bool { return true }) }

// take adds those of a time that ok takes, the earliest first.
func (q *queueInTest) take(ok func(time.Time) bool) {
	due := slices.SortedFunc(maps.Keys(q.later), func(a, b queue.Item) int {
		return cmp.Or(q.later[a].Compare(q.later[b]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	for _, it := range due {
		if ok(q.later[it]) {
			delete(q.later, it)
			q.Add(it)
		}
	}
}
