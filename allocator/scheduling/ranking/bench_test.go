// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"fmt"
	"math/rand"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

// BenchmarkDecision is a decision as the allocator takes it, on ledgers, without
// what the API server and the scheduler's filters cost: choose node and devices
// (choose-ns), then have index and ranking show what the grant leaves (update-ns).
// ns/op is both. Nodes have 8 devices, 90 % are taken, pods come and go and are of
// 151 classes. written-ns is what it takes to take in the API server's answer,
// release-ns to take in a ledger that a pod left, learn-ns an arrival with the looking
// at prices now and then, of which longest-learn-ms is the longest, scan-ns the same score
// for every node, which must choose the same, and rank-ns the choice by going through all
// nodes, as for pods that the engine has no words for.
// All are CPU time of one such step, less what it takes to read that clock. In one of
// sixteen decisions the objects on the heap are counted instead: choose-allocs and
// update-allocs.
func BenchmarkDecision(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 5_000, 20_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			l := newBusy(b, nodes)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l.spent, l.allocs = tally{}, tally{}
			b.ResetTimer()
			longest := 0.0
			for i := range b.N {
				l.steady()
				a := l.asks[l.Intn(len(l.asks))]
				learnt := l.spent["learn"].sum
				l.clock("learn", func() { l.ranking.Learn(a); l.ranking.Reprice() })
				longest = max(longest, l.spent["learn"].sum-learnt)
				want := ""
				if i%(b.N/10+1) == 0 {
					rooms := l.index.Room()
					l.clock("rank", func() { placement.Rank(a.Demand, rooms) })
					want = l.scan(a)
				}
				l.counting = i%16 == 8
				if got := l.place(a); want != "" && got != want {
					b.Fatalf("chose %s, the scan %s", got, want)
				}
				l.clock("nothing", func() {})
				l.counting = false
			}
			nothing := l.spent.of("nothing")
			for _, what := range []string{"choose", "update", "written", "release", "learn"} {
				b.ReportMetric(l.spent.of(what)-nothing, what+"-ns")
			}
			b.ReportMetric(l.spent.of("choose")+l.spent.of("update")-2*nothing, "ns/op")
			for _, what := range []string{"choose", "update"} {
				b.ReportMetric(l.allocs.of(what)-l.allocs.of("nothing"), what+"-allocs")
			}
			b.ReportMetric(longest/1e6, "longest-learn-ms")
			for _, what := range []string{"scan", "rank"} {
				b.ReportMetric(l.spent.of(what), what+"-ns")
			}
		})
	}
}

// BenchmarkTakeOver is what a new leader does before its first decision: the picture
// of a cluster that is 90 % full, learnt from its pods.
func BenchmarkTakeOver(b *testing.B) {
	for _, nodes := range []int{1_000, 5_000, 20_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			l := newBusy(b, nodes)
			b.ResetTimer()
			for range b.N {
				r := New()
				for _, p := range l.pods {
					r.Expect(p.ask)
				}
				for _, name := range l.index.Names() {
					room, _ := l.index.On(name)
					r.Set(name, room, l.hosts[name])
				}
				for _, p := range l.pods {
					r.Learn(p.ask)
				}
				r.Reprice()
			}
		})
	}
}

// busy is a cluster on which pods come and go.
type busy struct {
	*rand.Rand
	b       *testing.B
	index   *index.Index
	ranking *Ranking
	asks    []*Ask
	hosts   map[string]Host
	pods    []running
	// taken and all are devices.
	taken, all float64
	version    int
	// spent is in ns. allocs are objects made, while counting: that takes too long to be
	// timed.
	spent, allocs tally
	counting      bool
}

// tally adds up what steps take, by their names.
type tally map[string]struct {
	sum   float64
	times int
}

func (t tally) add(what string, n float64) {
	if t == nil {
		return // the cluster is still being filled
	}
	so := t[what]
	so.sum += n
	so.times++
	t[what] = so
}

// of is the mean.
func (t tally) of(what string) float64 { return t[what].sum / float64(t[what].times) }

type running struct {
	uid  types.UID
	node string
	ask  *Ask
}

func newBusy(b *testing.B, nodes int) *busy {
	l := &busy{Rand: rand.New(rand.NewSource(1)), b: b, index: index.New(), ranking: New(), hosts: map[string]Host{}, all: float64(8 * nodes)}
	sizes := []v1alpha1.Percent{5, 11, 16, 22, 23, 32, 37, 46, 47, 55, 59, 65, 81}
	var classes []*Ask
	for range 151 {
		s := v1alpha1.Share{GPUs: 1, Core: v1alpha1.WholeGPU}
		switch k := l.Intn(20); {
		case k < 1:
			s.GPUs = 2 << l.Intn(3)
		case k < 12:
			s.Core = sizes[l.Intn(len(sizes))]
		}
		s.MemPercent = s.Core
		a := &Ask{Demand: &placement.Demand{Containers: []placement.Container{{Name: "c", Share: s, Mode: v1alpha1.ModeLimiter}}},
			CPU: packer.Milli(1+l.Intn(12)) * 1000 * packer.Milli(s.GPUs), Mem: v1alpha1.MiB(1+l.Intn(16)) * 2048}
		classes = append(classes, a)
		l.ranking.Expect(a)
	}
	for _, a := range classes {
		weight := 1 + l.Intn(100)
		for range max(1, weight/int(a.Containers[0].Share.GPUs)) {
			l.asks = append(l.asks, a)
		}
	}
	for i := range nodes {
		ledger := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%06d", i), UID: "l"}}
		for d := range 8 {
			ledger.Status.Devices = append(ledger.Status.Devices, v1alpha1.DeviceStatus{
				UUID: fmt.Sprintf("GPU-%08d-%d-4b1c-9d2e-5f60718293a4", i, d), Index: int32(d), Model: []string{"A", "B", "C"}[i%3], Mem: 81559, Healthy: true})
		}
		ledger.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
		l.hosts[ledger.Name] = Host{CPU: 128_000, Cores: 128_000, Mem: 1 << 20}
		l.write(ledger, "")
	}
	for l.taken < 0.9*l.all {
		l.arrive()
	}
	for range len(l.pods) / 2 {
		l.steady()
		l.arrive()
	}
	return l
}

func (l *busy) arrive() {
	a := l.asks[l.Intn(len(l.asks))]
	l.ranking.Learn(a)
	l.ranking.Reprice()
	l.place(a)
}

// steady has pods leave until the cluster is as full as it should be.
func (l *busy) steady() {
	for l.taken >= 0.9*l.all {
		i := l.Intn(len(l.pods))
		p := l.pods[i]
		l.pods[i] = l.pods[len(l.pods)-1]
		l.pods = l.pods[:len(l.pods)-1]
		ledger := l.index.Ledger(p.node).DeepCopy()
		grants.Release(ledger, func(uid types.UID) bool { return uid == p.uid })
		l.taken -= p.ask.Devices()
		h := l.hosts[p.node]
		l.hosts[p.node] = Host{CPU: h.CPU + p.ask.CPU, Cores: h.Cores, Mem: h.Mem + p.ask.Mem}
		l.write(ledger, "release")
	}
}

// scan is the best node by the engine's score of every one; empty when that is one that
// lacks the last bit of CPU or memory, which the engine does not see.
func (l *busy) scan(a *Ask) (node string) {
	l.clock("scan", func() {
		if id, _, fits := l.ranking.engine.Scan(a.leading(), nil); fits {
			if n := l.ranking.parts[id].node; n.host.takes(a) {
				node = n.room.Name
			}
		}
	})
	return node
}

// place returns the node that was chosen, empty when there is none.
func (l *busy) place(a *Ask) string {
	var chosen *placement.Plan
	var room *placement.Node
	l.clock("choose", func() {
		for plan, n := range l.ranking.Plans(a) {
			chosen, room = &plan, n
			break
		}
	})
	if chosen == nil {
		return ""
	}
	uid := types.UID(fmt.Sprintf("5d0ac0f5-5a6e-4b60-9a7e-%012d", l.version))
	known := l.index.Behind(room)
	ledger := known.DeepCopy()
	if err := grants.Grant(ledger, uid, "namespace/pod", *chosen, time.Time{}); err != nil {
		l.b.Fatal(err)
	}
	l.pods = append(l.pods, running{uid, chosen.Node, a})
	l.taken += a.Devices()
	h := l.hosts[chosen.Node]
	l.hosts[chosen.Node] = Host{CPU: h.CPU - a.CPU, Cores: h.Cores, Mem: h.Mem - a.Mem}
	l.clock("update", func() {
		l.index.Draft(known, ledger)
		l.show()
	})
	l.write(ledger, "written")
	return chosen.Node
}

// show has the ranking see what changed.
func (l *busy) show() {
	for _, name := range l.index.Changed() {
		room, _ := l.index.On(name)
		l.ranking.Set(name, room, l.hosts[name])
	}
}

// write is the ledger's next version, as the API server returns it. The containers
// with its slices all run.
func (l *busy) write(ledger *v1alpha1.SliceLedger, what string) {
	l.version++
	ledger.ResourceVersion = strconv.Itoa(l.version)
	ledger.Status.Slices = ledger.Status.Slices[:0]
	for _, d := range ledger.Spec.Devices {
		for _, s := range d.Slices {
			ledger.Status.Slices = append(ledger.Status.Slices, v1alpha1.SliceStatus{Pod: s.Pod, Ctr: s.Ctr, UUID: d.UUID})
		}
	}
	l.clock(what, func() {
		l.index.Put(ledger)
		l.show()
	})
}

// clock counts the CPU time of what is done. On a machine that others use the wall's
// clock does not say what it costs.
func (l *busy) clock(what string, do func()) {
	now := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			l.b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	if l.counting {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		l.allocs.add(what, float64(after.Mallocs-before.Mallocs))
		return
	}
	start := now()
	do()
	l.spent.add(what, float64(now()-start))
}
