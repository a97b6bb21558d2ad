// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// begin is when worlds begin, some time within an hour.
var begin = time.Date(2026, 3, 1, 10, 17, 31, 250e6, time.UTC)

// errKilled is what a write panics with at which the agent is killed.
var errKilled = errors.New("killed")

// world is a node: its clock, devices, ledger, containers and API server, and the agent's
// account while it runs.
type world struct {
	t       *testing.T
	random  *rand.Rand
	now     time.Time
	devices []v1alpha1.DeviceStatus
	ledger  *v1alpha1.SliceLedger
	table   *attach.ContainerTable
	busy    time.Duration
	// counts are all containers' counters besides busy, workloads are by container; web by default.
	counts    layout.DeviceUsage
	workloads map[string]string
	api       client.Client
	path      string
	account   *Account

	// What the driver and the counters say beside busy.
	driver                 device.Use
	working                map[string]bool
	launches               uint64
	users                  []layout.ProcessUsage
	driverErr, countersErr error
	idleAfter              time.Duration
	idleChanges            int

	// writes until the agent is killed, before or after that write; negative never.
	kill      int
	after     bool
	fails     error // of the next writes to the API server
	published int
	grants    int
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 0)), now: begin, ledger: &v1alpha1.SliceLedger{}, table: &attach.ContainerTable{},
		path: filepath.Join(t.TempDir(), "usage.json"), kill: -1, driver: device.Use{Busy: 50}}
	for i, model := range []string{"A100", "H100", "H100"} {
		d := v1alpha1.DeviceStatus{UUID: fmt.Sprint("GPU-", i), Model: model, Mem: 1000, Healthy: true}
		w.devices = append(w.devices, d)
		w.ledger.Spec.Devices = append(w.ledger.Spec.Devices, v1alpha1.DeviceLedger{UUID: d.UUID, Core: 100, Mem: d.Mem})
	}
	w.table.Reset(nil)
	scheme := runtime.NewScheme()
	must.Do(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}}).
		WithStatusSubresource(&v1alpha1.SliceUsage{}).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
			return w.writing(func() error { return c.Create(ctx, obj, o...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, kind string, obj client.Object, o ...client.SubResourceUpdateOption) error {
			err := w.fails
			if w.fails = nil; err != nil {
				return err
			}
			w.published++
			return w.writing(func() error { return c.SubResource(kind).Update(ctx, obj, o...) })
		},
	}).Build()
	return w
}

// writing does a write, unless the agent is killed at it.
func (w *world) writing(do func() error) error {
	w.kill--
	if w.kill == 0 && !w.after {
		panic(errKilled)
	}
	err := do()
	if w.kill == 0 {
		panic(errKilled)
	}
	return err
}

// start starts an agent.
func (w *world) start() {
	w.account = New(Sources{
		Node: "n", Path: w.path, Live: w.api, Table: w.table, Modes: mode.Set{v1alpha1.ModeLimiter: counters{Mode: nil, of: w}, v1alpha1.ModeMPS: struct{ mode.Mode }{}, v1alpha1.ModeMIG: struct{ mode.Mode }{}},
		State: func() (device.Snapshot, *ledger.Index, bool) {
			return device.Snapshot{Devices: slices.Clone(w.devices)}, ledger.NewIndex(w.ledger.DeepCopy()), true
		},
		Workload: func(c mode.Container) string {
			if name, known := w.workloads[c.ID]; known {
				return name
			}
			return "Deployment/web"
		},
		Use:         func(string) (device.Use, error) { return w.driver, w.driverErr },
		Working:     func(string) (map[string]bool, error) { return w.working, w.driverErr },
		IdleAfter:   w.idleAfter,
		IdleChanged: func() { w.idleChanges++ },
		Now:         func() time.Time { return w.now }, Log: logr.Discard(),
	})
	w.account.write = func(path string, text []byte) error {
		return w.writing(func() error { return write(path, text) })
	}
	w.do(w.account.Changed)
}

// do has the agent do something, unless it is away. A panic of a kill ends it.
func (w *world) do(what func()) {
	defer func() {
		switch e := recover(); e {
		case nil:
		case errKilled:
			w.account, w.kill = nil, -1
		default:
			panic(e)
		}
	}()
	if w.account != nil {
		what()
	}
}

// look is the agent's. Errors of the API server are nothing to a test.
func (w *world) look() {
	w.do(func() { _ = w.account.Look(context.Background()) })
}

func (w *world) changed() { w.do(func() { w.account.Changed() }) }

// grant enters a slice if there is room, from now on.
func (w *world) grant(device int, namespace string, core v1alpha1.Percent, mem v1alpha1.MiB) {
	d := &w.ledger.Spec.Devices[device]
	var sum v1alpha1.Amounts
	for _, s := range d.Slices {
		sum.Core, sum.Mem = sum.Core+s.Core-s.ReuseCore, sum.Mem+s.Mem-s.ReuseMem
	}
	if sum.Core+core > d.Core || sum.Mem+mem > d.Mem {
		return
	}
	w.grants++
	since := metav1.NewTime(w.now.Truncate(time.Second)) // as it is stored
	s := v1alpha1.Slice{Pod: types.UID(fmt.Sprint(w.grants)), Owner: namespace + "/p", Ctr: "main", Core: core, Mem: mem, Since: &since}
	d.Slices = append(d.Slices, s)
	if w.grants%3 == 0 { // an init container's, which is counted with the other
		s.Ctr, s.Core, s.Mem, s.ReuseCore, s.ReuseMem = "init", core/2, mem, core/2, mem
		d.Slices = append(d.Slices, s)
	}
}

func (w *world) meta() metav1.ObjectMeta { return metav1.ObjectMeta{Name: "n"} }

// object is the published account.
func (w *world) object() *v1alpha1.SliceUsageStatus {
	w.t.Helper()
	u := &v1alpha1.SliceUsage{}
	must.Do(w.t, client.IgnoreNotFound(w.api.Get(context.Background(), client.ObjectKey{Name: "n"}, u)))
	return &u.Status
}

// inFile is what a restart goes on from.
func (w *world) inFile() kept {
	w.t.Helper()
	return must.Get(load(w.path))(w.t)
}

var errConflict = apierrors.NewConflict(schema.GroupResource{Group: v1alpha1.Group, Resource: "sliceusages"}, "n", errors.New("changed"))

// counters are those of every container.
type counters struct {
	mode.Mode
	of *world
}

func (c counters) Usage(of mode.Container) (*layout.Usage, error) {
	d := c.of.counts
	d.Busy, d.Launches = c.of.busy, c.of.launches
	return &layout.Usage{Devices: []layout.DeviceUsage{d}, Processes: c.of.users}, c.of.countersErr
}

// checkSums looks whether everything adds up: in each hour and in the sums, of each model.
func checkSums(t *testing.T, when string, s *v1alpha1.SliceUsageStatus) {
	t.Helper()
	check := func(of string, models []v1alpha1.ModelUsage) {
		for _, m := range models {
			var all v1alpha1.DeviceTime
			for _, t := range []v1alpha1.DeviceTime{m.Free, m.Unavailable, m.Unknown} {
				all.Add(t)
			}
			for _, e := range m.Granted {
				all.Add(e.DeviceTime)
				if e.Core < 0 || e.Mem < 0 {
					t.Errorf("%s, %s, %s: %s has %v", when, of, m.Model, e.Namespace, e.DeviceTime)
				}
			}
			if all != m.Total || min(m.Free.Core, m.Unavailable.Core, m.Unknown.Core) < 0 || min(m.Free.Mem, m.Unavailable.Mem, m.Unknown.Mem) < 0 {
				t.Errorf("%s, %s, %s: adds up to %v: %+v", when, of, m.Model, all, m)
			}
		}
	}
	check("sums", s.Sums)
	for i, h := range s.Hours {
		check("hour "+h.Start.UTC().String(), h.Models)
		if i > 0 && h.Start.Unix() <= s.Hours[i-1].Start.Unix() || h.Start.Unix()%hour != 0 {
			t.Errorf("%s: hour %d begins at %v", when, i, h.Start)
		}
	}
}
