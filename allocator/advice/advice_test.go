// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// cached is a cache that is always current.
type cached struct {
	ctrlcache.Cache
	of client.Client
}

func (c cached) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	return c.of.List(ctx, list, o...)
}

// world is a cluster of nodes that publish, and a leader.
type world struct {
	t      *testing.T
	api    client.Client
	keeper *Keeper
	clock  *clocktesting.FakeClock
	writes int
	// lost writes answer with an error after they were done, failed ones before.
	lost, failed bool
}

var errAway = errors.New("the API server is away")

func newWorld(t *testing.T) *world {
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC))}
	scheme := runtime.NewScheme()
	must.Do(t, v1alpha1.AddToScheme(scheme))
	write := func(do func() error) error {
		w.writes++
		if w.failed {
			return errAway
		}
		if err := do(); err != nil || !w.lost {
			return err
		}
		return errAway
	}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, o, opts...) })
		},
	}).Build()
	w.lead()
	return w
}

// lead is a new leader.
func (w *world) lead() {
	w.keeper = &Keeper{Client: w.api, Cache: cached{of: w.api}, Clock: w.clock, Log: logr.Discard(), Namespace: func(name string) (*corev1.Namespace, error) {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}}
		switch name {
		case "gone", "":
			return nil, errAway
		case "ending":
			n.DeletionTimestamp = &metav1.Time{Time: w.clock.Now()}
		case "other":
			n.Labels = nil
		}
		return n, nil
	}}
}

// look has the leader look at all workloads.
func (w *world) look() {
	for range turns {
		_ = w.keeper.look(w.t.Context())
	}
}

// publish writes what a node has.
func (w *world) publish(node string, entries ...v1alpha1.ContainerUse) {
	w.t.Helper()
	lost, failed := w.lost, w.failed
	w.lost, w.failed = false, false
	u := &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: node}}
	must.Do(w.t, client.IgnoreNotFound(w.api.Delete(w.t.Context(), u)))
	u.Status.Containers = entries
	must.Do(w.t, w.api.Create(w.t.Context(), u))
	w.lost, w.failed = lost, failed
}

func (w *world) objects() []v1alpha1.SliceAdvice {
	list := &v1alpha1.SliceAdviceList{}
	must.Do(w.t, w.api.List(w.t.Context(), list))
	return list.Items
}

// used is use of so many samples of 10 minutes, up to a time.
func used(at time.Time, samples int, core float64, mem v1alpha1.MiB) *advice.Use {
	u := &advice.Use{Pods: 1, Request: advice.Amount{Core: 50, Mem: 8000}}
	for i := range samples {
		u.Observe(advice.Sample{At: at.Add(-time.Duration(samples-1-i) * 10 * time.Minute), Lasted: 10 * time.Minute, Core: core, Mem: mem})
	}
	return u
}

func entry(t *testing.T, u *advice.Use) v1alpha1.ContainerUse {
	return v1alpha1.ContainerUse{Namespace: "team", Workload: "Deployment/web", Container: "main", Model: "A100", GPUMem: 80_000, Slices: 1, Use: string(must.Get(json.Marshal(u))(t))}
}

func valueOf(t *testing.T, g prometheus.Gauge) float64 {
	m := &dto.Metric{}
	must.Do(t, g.Write(m))
	return m.GetGauge().GetValue()
}

// What two nodes have seen is one object, with the advice for it, which a second look leaves alone.
func TestMerges(t *testing.T) {
	w := newWorld(t)
	now := w.clock.Now()
	w.publish("n1", entry(t, used(now, 600, 10, 1000)))
	w.publish("n2", entry(t, used(now, 600, 20, 2000)))
	w.look()
	w.writes = 0
	w.look()
	all := w.objects()
	if len(all) != 1 || w.writes != 0 {
		t.Fatalf("%d objects, then %d writes: %+v", len(all), w.writes, all)
	}
	o := all[0]
	s := o.Status
	if o.Namespace != "team" || o.Name != "deployment.web.main" || s.Workload != "Deployment/web" || s.Container != "main" || s.Slices != 2 || s.Samples != 1200 || s.Pods != 2 || s.Days != 5 {
		t.Errorf("%+v", o)
	}
	if s.Core != (v1alpha1.CoreUse{P50: 10, P95: 20, P99: 20, Max: 20}) || s.Mem.PeakMiB != 2000 || s.Request != (v1alpha1.GPUAmounts{Core: 50, MemMiB: 8000}) {
		t.Errorf("%+v", s)
	}
	if s.Advice.Core != 23 || s.Advice.MemMiB < 2200 || s.Advice.MemMiB >= 8000 || s.Confidence != v1alpha1.ConfidenceMedium || len(s.Reasons) < 2 {
		t.Errorf("%+v", s)
	}
	if got := valueOf(t, freeableGPUs); got != 0.54 {
		t.Errorf("%v GPUs can be freed", got)
	}
	if got := valueOf(t, freeableMemory); got != float64(2*(8000-s.Advice.MemMiB).Bytes()) {
		t.Errorf("%v bytes can be freed", got)
	}
}

// Whatever ends, fails or is restarted: no sample counts twice, and none is lost while a leader sees the
// nodes go.
func TestCountsOnce(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(t)
		random := rand.New(rand.NewPCG(seed, 1))
		type node struct {
			live  *advice.Use
			ended []v1alpha1.ContainerUse
		}
		nodes := map[string]*node{}
		truth, lost := int64(0), false
		publish := func(name string) {
			n := nodes[name]
			all := slices.Clone(n.ended)
			if n.live != nil {
				all = append(all, entry(t, n.live))
			}
			w.publish(name, all...)
		}
		for range 200 {
			w.clock.Step(15 * time.Minute)
			now := w.clock.Now()
			name := fmt.Sprint("n", random.IntN(4))
			n := nodes[name]
			if n == nil {
				n = &node{}
				nodes[name] = n
			}
			switch random.IntN(10) {
			case 0: // the node goes
				u := &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: name}}
				must.Do(t, client.IgnoreNotFound(w.api.Get(t.Context(), client.ObjectKeyFromObject(u), u)))
				if u.UID == "" && u.ResourceVersion == "" {
					delete(nodes, name)
					continue
				}
				must.Do(t, w.api.Delete(t.Context(), u))
				var last any = u
				if random.IntN(2) == 0 {
					last = cache.DeletedFinalStateUnknown{Obj: u}
				}
				w.keeper.deleted(last)
				delete(nodes, name)
				continue
			case 1: // the leader
				if len(w.keeper.gone) > 0 {
					lost = true
				}
				w.lead()
			case 2: // the containers
				if n.live != nil {
					e := entry(t, n.live)
					e.Ended, e.Slices = &metav1.Time{Time: now}, 0
					n.ended, n.live = append(n.ended, e), nil
				}
			case 3:
				w.failed = true
			case 4:
				w.lost = true
			default:
				if n.live == nil {
					n.live = used(now, 1, 10, 1000)
				} else {
					n.live.Observe(advice.Sample{At: now, Lasted: time.Minute, Core: 10})
				}
				truth++
			}
			n.ended = slices.DeleteFunc(n.ended, func(e v1alpha1.ContainerUse) bool { return now.Sub(e.Ended.Time) >= 24*time.Hour })
			publish(name)
			lost = lost || w.failed && len(w.keeper.gone) > 0
			w.keeper.turn = keyOf(&v1alpha1.ContainerUse{Namespace: "team", Workload: "Deployment/web", Container: "main"}).turn()
			_ = w.keeper.look(t.Context())
			w.failed, w.lost = false, false
			for _, o := range w.objects() {
				if o.Status.Samples > truth {
					t.Fatalf("seed %d: %d samples count, there were %d", seed, o.Status.Samples, truth)
				}
			}
		}
		for range 2 {
			w.look()
		}
		if all := w.objects(); len(all) != 1 || !lost && all[0].Status.Samples != truth {
			t.Errorf("seed %d: %d objects, %d samples count, there were %d, on %v", seed, len(all), all[0].Status.Samples, truth, slices.Sorted(maps.Keys(nodes)))
		}
	}
}

// An object goes when its workload has not been seen for 14 days, and lives on what has ended until then.
func TestEnds(t *testing.T) {
	w := newWorld(t)
	e := entry(t, used(w.clock.Now(), 600, 10, 1000))
	w.publish("n", e)
	w.look()
	w.clock.Step(time.Hour)
	e.Ended, e.Slices = &metav1.Time{Time: w.clock.Now()}, 0
	w.publish("n", e)
	for range 14 * 24 {
		w.clock.Step(time.Hour)
		if w.clock.Now().Sub(e.Ended.Time) > 24*time.Hour {
			w.publish("n")
		}
		w.look()
		if all := w.objects(); w.clock.Now().Sub(e.Ended.Time) < kept-2*time.Hour && (len(all) != 1 || all[0].Status.Samples != 600 || all[0].Status.Mem.PeakMiB != 1000) {
			t.Fatalf("at %v: %+v", w.clock.Now(), all)
		}
	}
	if all := w.objects(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// What a node's agent may write: entries without bounds, of any namespace, from the future, or that are
// no documents. Objects are made in namespaces that there are, and not without end.
func TestHostileEntries(t *testing.T) {
	w := newWorld(t)
	now := w.clock.Now()
	good := used(now, 600, 10, 1000)
	var all []v1alpha1.ContainerUse
	add := func(set func(e *v1alpha1.ContainerUse)) {
		e := entry(t, good)
		set(&e)
		all = append(all, e)
	}
	for _, name := range []string{"gone", "ending", "other", ""} {
		add(func(e *v1alpha1.ContainerUse) { e.Namespace = name })
	}
	for _, text := range []string{"", "{", "null", `{"v":1,"n":-1}`, strings.Repeat(" ", 1<<20), `{"v":1,"core":{"v":1,"at":99999,"w":1e18,"b":[[100,1]]},"mem":{"v":1,"at":0,"w":0,"b":[]},"n":1,"since":1,"last":1}`} {
		add(func(e *v1alpha1.ContainerUse) { e.Use = text })
	}
	add(func(e *v1alpha1.ContainerUse) { e.Use = entry(t, used(now.Add(48*time.Hour), 1, 100, 1<<40)).Use })
	add(func(e *v1alpha1.ContainerUse) { e.Slices = 1<<31 - 1 })
	add(func(e *v1alpha1.ContainerUse) { e.Slices = 1<<31 - 1 })
	for i := range most + 100 {
		add(func(e *v1alpha1.ContainerUse) { e.Namespace, e.Workload = "many", fmt.Sprint("Job/j-", i) })
	}
	w.publish("n", all...)
	w.look()
	number := map[string]int{}
	for _, o := range w.objects() {
		number[o.Namespace]++
		if o.Namespace == "team" && (o.Status.Samples != 1200 || o.Status.Core.Max != 10 || o.Status.Mem.PeakMiB != 1000 || o.Status.Slices != 1<<31-1) {
			t.Errorf("%+v", o.Status)
		}
	}
	if want := map[string]int{"team": 1, "many": most}; !maps.Equal(number, want) {
		t.Errorf("objects by namespace: %v", number)
	}
}

// An object has at most 2 KiB as a rule, and 4 KiB at worst.
func TestSize(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, tt := range map[string]struct {
		most int
		core func() float64
		mem  func() v1alpha1.MiB
		name string
	}{
		"usual": {2 << 10, func() float64 { return 20 + 5*random.NormFloat64() }, func() v1alpha1.MiB { return v1alpha1.MiB(8000 + random.Int64N(500)) }, "web"},
		"worst": {4 << 10, func() float64 { return random.Float64() * 100 }, func() v1alpha1.MiB { return v1alpha1.MiB(random.Int64N(1 << 20)) }, strings.Repeat("w", 250)},
	} {
		w := newWorld(t)
		u := &advice.Use{Pods: 9, Request: advice.Amount{Core: 50, Mem: 80_000}}
		for i := range 8 * 24 * 60 {
			u.Observe(advice.Sample{At: w.clock.Now().Add(time.Duration(i-8*24*60) * time.Minute), Lasted: time.Minute, Core: tt.core(), Mem: tt.mem(), Throttled: 4 * time.Second, Refusals: int64(i % 2), Need: 100_000})
		}
		e := entry(t, u)
		e.Workload, e.Ended = "Deployment/"+tt.name, &metav1.Time{Time: w.clock.Now().Add(-3 * time.Hour)}
		w.publish("n", e)
		w.look()
		text := must.Get(json.Marshal(&w.objects()[0]))(t)
		if t.Logf("%s: %d bytes", name, len(text)); len(text) > tt.most {
			t.Errorf("%s: %d bytes: %s", name, len(text), text)
		}
	}
}
