// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// lendWorld is a node with one device of 10000 MiB. Containers with memory are owners.
type lendWorld struct {
	*lender
	t      *testing.T
	ledger *v1alpha1.SliceLedger
	// owners are their limiter's files by container, busy the PIDs on the device.
	owners    map[string]*layout.Lendable
	busy      []int
	escapes   bool
	at        time.Time
	published int
}

const lentGPU = "GPU-1"

func newLendWorld(t *testing.T) *lendWorld {
	w := &lendWorld{t: t, owners: map[string]*layout.Lendable{}, at: time.Unix(1e6, 0), ledger: &v1alpha1.SliceLedger{
		ObjectMeta: metav1.ObjectMeta{UID: "ledger"},
		Spec:       v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: lentGPU, Core: 100, Mem: 10000}}},
	}}
	w.restart()
	w.table.Reset(nil)
	return w
}

// restart begins with an agent that knows nothing but the runtime's containers.
func (w *lendWorld) restart() {
	table := &attach.ContainerTable{}
	if w.lender != nil {
		entries := w.table.All()
		for i := range entries {
			entries[i].Ready = nil
		}
		table.Reset(entries)
	}
	index := ledger.NewIndex(w.ledger)
	w.lender = &lender{
		on: true, index: func() *ledger.Index { return index }, table: table, now: func() time.Time { return w.at }, log: logr.Discard(),
		read: func(c mode.Container) ([]layout.Lendable, error) {
			if o := w.owners[c.ID]; o != nil {
				return []layout.Lendable{*o}, nil
			}
			return nil, layout.ErrOlderLibrary
		},
		ready: func(c mode.Container, _ string, ready v1alpha1.MiB) error {
			o := w.owners[c.ID]
			if ready != 0 && o.ChargedBytes > ready.Bytes() {
				return &layout.InfeasibleError{}
			}
			if o.ReadyBytes = ready.Bytes(); ready == 0 {
				o.ReadyBytes = o.LimitBytes
			}
			return nil
		},
		peak:      func(ledger.Key) (v1alpha1.MiB, bool) { return 1000, true },
		escaped:   func(string) bool { return w.escapes },
		processes: func(c mode.Container) []int { return []int{len(c.ID)} },
		using:     func(string) ([]int, error) { return w.busy, nil },
		look:      func(types.UID) {}, publish: func() { w.published++ },
	}
}

// grant writes a slice into the ledger; idle is its percent of idle compute.
func (w *lendWorld) grant(id string, mem v1alpha1.MiB, idle v1alpha1.Percent) {
	d := &w.ledger.Spec.Devices[0]
	since := metav1.NewTime(w.at)
	d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID(id), Owner: "team/" + id, Ctr: "c", Mem: mem, Idle: idle, Since: &since})
	w.changed()
}

func (w *lendWorld) changed() {
	d, sum := &w.ledger.Spec.Devices[0], v1alpha1.MiB(0)
	for _, s := range d.Slices {
		sum += s.Mem
	}
	d.Lent = max(0, sum-d.Mem)
	index := ledger.NewIndex(w.ledger)
	w.index = func() *ledger.Index { return index }
}

func (w *lendWorld) release(id string) {
	d := &w.ledger.Spec.Devices[0]
	d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return string(s.Pod) == id })
	w.changed()
}

// run starts a container of a slice that is granted.
func (w *lendWorld) run(id string) error {
	grants := w.index().Grants(ledger.Key{Pod: types.UID(id), Container: "c"})
	if err := w.table.Attach(attach.Entry{Container: mode.Container{Pod: types.UID(id), Owner: "team/" + id, Name: "c", ID: id, Grants: grants}, Prepared: true, PID: 1}); err != nil {
		return err
	}
	if grants[0].Idle == 0 {
		w.owners[id] = &layout.Lendable{UUID: lentGPU, LimitBytes: grants[0].Mem.Bytes(), ReadyBytes: grants[0].Mem.Bytes()}
	}
	return nil
}

func (w *lendWorld) owner(id string, mem v1alpha1.MiB) {
	w.t.Helper()
	w.grant(id, mem, 0)
	must.Do(w.t, w.run(id))
}

func (w *lendWorld) pass(d time.Duration) {
	w.at = w.at.Add(d)
	w.once()
	w.within()
}

// within fails where what is ready of the owners and what idle slices have is more than the device.
func (w *lendWorld) within() {
	w.t.Helper()
	sum := v1alpha1.MiB(0)
	for _, e := range w.table.All() {
		if o := w.owners[e.ID]; o != nil {
			sum += v1alpha1.MiBFromBytes(o.ReadyBytes)
		} else {
			sum += e.Grants[0].Mem
		}
	}
	if sum > 10000 {
		w.t.Fatalf("Invariant 1: %d MiB of 10000 are in use or ready", sum)
	}
}

func (w *lendWorld) want(when string, lendable, ready v1alpha1.MiB, ended ...string) {
	w.t.Helper()
	var all []string
	for _, s := range w.index().Idle {
		for _, idle := range s.Slices {
			if w.isEnded(idle.Pod) {
				all = append(all, string(idle.Pod))
			}
		}
	}
	got, is := fmt.Sprint(w.lendable(lentGPU), v1alpha1.MiBFromBytes(w.owners["owner"].ReadyBytes), all), fmt.Sprint(lendable, ready, ended)
	if got != is {
		w.t.Errorf("%s: lendable, ready and ended are %s, want %s", when, got, is)
	}
}

// Memory is lent after ten minutes and once an idle slice has it, and goes back after that has ended and
// the driver has none of its processes.
func TestLender(t *testing.T) {
	w := newLendWorld(t)
	w.owner("owner", 9000)
	w.pass(0)
	w.pass(lendAfter - time.Second)
	w.want("it runs for less than 10 minutes", 0, 9000)
	w.pass(time.Second)
	w.want("nobody needs it", 7100/lendableStep*lendableStep, 9000)
	w.grant("idle", 3000, 30)
	if w.run("idle") == nil {
		t.Fatal("Invariant 1: the idle slice starts before the limit is lowered")
	}
	w.pass(lentLook)
	w.want("an idle slice is granted", 6912, 7000)
	must.Do(t, w.run("idle"))
	w.owners["owner"].ChargedBytes = (7000 - 450) << 20
	w.pass(lentLook)
	w.want("half of the margin is left", 1792, 7000) // what is lent stays so
	w.owners["owner"].ChargedBytes++
	w.busy = []int{len("idle")}
	w.pass(lentLook)
	w.want("less is left", 0, 7000, "idle")
	w.table.Detach("idle")
	w.pass(lentLook)
	w.want("its process is still the driver's", 0, 7000, "idle")
	w.busy = nil
	w.pass(lentLook)
	w.want("its process is gone", 0, 9000, "idle")
	w.release("idle")
	w.owners["owner"].ChargedBytes = 0
	w.pass(lendAfter - 2*lentLook)
	w.want("it took it back less than 10 minutes ago", 0, 9000)
	w.pass(time.Minute)
	w.want("later", 6912, 9000)
}

// A charge that waits has it back, a process that the driver never lets go of notwithstanding.
func TestLender_WhenAChargeWaits(t *testing.T) {
	w := lent(t)
	w.owners["owner"].WantedBytes, w.busy = 7000<<20+1, []int{len("idle")}
	w.pass(lentLook)
	w.want("a charge waits", 0, 7000, "idle")
	w.table.Detach("idle")
	for range 10 {
		w.pass(lentLook)
	}
	w.want("a second later", 0, 9000, "idle")
}

// lent is a node on which an idle slice has 2000 MiB of the owner's 9000.
func lent(t *testing.T) *lendWorld {
	w := newLendWorld(t)
	w.owner("owner", 9000)
	w.pass(0)
	w.pass(lendAfter)
	w.grant("idle", 3000, 30)
	w.pass(lentLook)
	must.Do(t, w.run("idle"))
	w.want("lent", 6912, 7000)
	return w
}

// Nothing is lent where a process escapes, without the flag, or while a slice is resized; what was lent is
// taken back.
func TestLender_WhenItMayNot(t *testing.T) {
	for name, edit := range map[string]func(*lendWorld){
		"a process escapes": func(w *lendWorld) { w.escapes = true },
		"it is off":         func(w *lendWorld) { w.restart(); w.on = false },
		"it is resized": func(w *lendWorld) {
			w.ledger.Spec.Devices[0].Slices[0].Resize = &v1alpha1.SliceResize{Number: 1, Amounts: v1alpha1.Amounts{Mem: 8000}, From: v1alpha1.Amounts{Mem: 9000}}
			w.changed()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := lent(t)
			edit(w)
			w.pass(lentLook)
			w.want(name, 0, 7000, "idle")
			w.table.Detach("idle")
			w.pass(lentLook)
			w.want("its container has ended", 0, 9000, "idle")
		})
	}
	w := newLendWorld(t)
	w.on = false
	w.owner("owner", 9000)
	w.pass(0)
	w.pass(lendAfter)
	w.want("off from the beginning", 0, 9000)
}

// An agent that starts again goes on from the files, and ends nothing before it knows what runs.
func TestLender_WhenTheAgentRestarts(t *testing.T) {
	w := lent(t)
	table := w.table
	w.restart()
	known := w.table
	w.table = &attach.ContainerTable{}
	w.once()
	if w.isEnded("idle") {
		t.Error("an idle slice is ended before the runtime was asked")
	}
	w.table = known
	w.pass(lentLook)
	w.want("it goes on", 1792, 7000)
	if _, entered := table.Get("idle"); !entered || w.published == 0 {
		t.Error("the idle slice was ended, or nothing was published")
	}
	w.grant("second", 1, 30)
	if w.run("second") == nil {
		t.Error("Invariant 1: what is lent is lent twice")
	}
}

// Whatever owners and idle slices do, no more is ready and used by idle slices than there is, and an owner
// that waits has all of its memory within two seconds while the agent works.
func TestLender_AtRandom(t *testing.T) {
	w, dice := newLendWorld(t), rand.New(rand.NewPCG(1, 2))
	for i := range 3 {
		w.owner(fmt.Sprint("owner", i), 3000)
	}
	w.owners["owner"] = w.owners["owner0"]
	w.pass(0)
	w.pass(lendAfter)
	var idle []string
	gone := map[string]time.Time{}
	waits := map[*layout.Lendable]time.Time{}
	n, lends, waited := 0, 0, 0
	for range 60000 {
		for _, o := range w.owners {
			if dice.IntN(40) == 0 && o.ChargedBytes <= o.ReadyBytes {
				o.WantedBytes = uint64(1+dice.IntN(3000)) << 20 // it charges so much, or frees
			}
			if o.WantedBytes == 0 {
				continue
			}
			if o.WantedBytes <= o.ReadyBytes {
				o.ChargedBytes, o.WantedBytes = o.WantedBytes, 0
				delete(waits, o)
			} else if waits[o].IsZero() {
				waits[o] = w.at
				waited++
			} else if w.at.Sub(waits[o]) > 2*time.Second {
				t.Fatal("an owner has waited for more than two seconds")
			}
		}
		if mem := v1alpha1.MiB(1 + dice.IntN(4000)); dice.IntN(10) == 0 && w.ledger.Spec.Devices[0].Mem-w.index().Granted(lentGPU).Mem+w.lendable(lentGPU) >= mem {
			n++
			idle = append(idle, fmt.Sprint("idle", n))
			w.grant(idle[len(idle)-1], mem, 1)
		}
		for _, id := range slices.Clone(idle) {
			_, runs := w.table.Get(id)
			switch ended := w.isEnded(types.UID(id)); {
			case ended && runs && gone[id].IsZero(): // it is killed
				gone[id] = w.at.Add(time.Duration(dice.IntN(800)) * time.Millisecond)
			case ended && runs && w.at.After(gone[id]):
				w.table.Detach(id)
			case ended && !runs:
				w.release(id)
				idle = slices.DeleteFunc(idle, func(other string) bool { return other == id })
			case !runs && w.run(id) == nil:
				lends++
			}
		}
		if dice.IntN(500) == 0 {
			w.restart()
		}
		if dice.IntN(300) == 0 {
			w.at = w.at.Add(lendAfter)
			clear(waits)
		}
		w.pass(lentLook)
	}
	if lends < 100 || waited < 100 {
		t.Errorf("only %d idle slices ran, and %d charges waited", lends, waited)
	}
}
