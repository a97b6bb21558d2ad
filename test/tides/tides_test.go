// SPDX-License-Identifier: Apache-2.0

// Package tides has tests of tides as a whole: the leader, a node agent and the API server, each with
// its own clock, over ends of windows, kills, absences and jumps of clocks.
package tides

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/tides"
	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/tide"
	"vernier.dev/vernier/api/v1alpha1"
	nodetide "vernier.dev/vernier/nri-plugin/tide"
	"vernier.dev/vernier/test/must"
)

const (
	// simulated is how many ends of windows there are with idle slices on the node.
	simulated = 1000
	// look is how often an agent looks.
	look = time.Second
	// length is how long a world lasts.
	length = 48 * time.Hour
	// percent is what each idle slice is placed for, of compute and of memory.
	percent = 10
)

// span is a time from one moment to another.
type span struct{ from, until time.Time }

// away is something that is not there until a time.
type away struct{ until time.Time }

func (a away) is(now time.Time) bool { return now.Before(a.until) }

// world is a node and what it depends on. Of the clocks one is wrong at a time.
type world struct {
	t *testing.T
	r *rand.Rand

	began, now time.Time
	spec       *v1alpha1.Tide
	windows    []span // when the tide is open, truly
	// wrong are by how much clocks are ahead.
	wrong map[clock]time.Duration
	right time.Time // until when one is wrong
	// quiet is since when nothing was disturbed.
	quiet time.Time

	api, leader, agent away
	// ledger is the API server's.
	ledger *v1alpha1.LedgerTide
	slices []nodetide.Slice

	set         *tides.Set
	leaderClock *servertime.Clock
	leaderNext  time.Time

	// agentClock is nil while there is no agent. seen is the ledger by its watch.
	agentClock *servertime.Clock
	agentNext  time.Time // of its next request
	seen       *v1alpha1.LedgerTide
	// lookedAt is when the agent looked last, and shut what got no turn then.
	lookedAt time.Time
	shut     []nodetide.On

	placed, undisturbed int
}

type clock int

const (
	serverClock clock = iota
	leaderClock
	agentClock
)

func (w *world) wall(of clock) func() time.Time {
	return func() time.Time { return w.now.Add(w.wrong[of]) }
}

func (w *world) newClock(of clock) *servertime.Clock {
	return servertime.New(w.wall(of), func() time.Duration { return w.now.Sub(w.began) })
}

// contact is an answer of the API server.
func (w *world) contact(c *servertime.Clock) { c.Observe(w.wall(serverClock)().Truncate(time.Second)) }

// newWorld begins in a night of a change of clocks, or in another.
func newWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(42, seed))
	zones := map[string]string{"Europe/Berlin": "2026-03-28 2026-10-24", "America/New_York": "2026-03-07 2026-10-31", "America/Santiago": "2026-04-04 2026-09-05",
		"Australia/Lord_Howe": "2026-04-04 2026-10-03", "Asia/Shanghai": "2026-05-01 2026-12-31", "UTC": "2028-02-28 2026-12-31"}
	names := []string{"Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Asia/Shanghai", "UTC"}
	zone := names[r.IntN(len(names))]
	var days [2]string
	must.Get(fmt.Sscan(zones[zone], &days[0], &days[1]))(t)
	began := must.Get(time.ParseInLocation(time.DateOnly, days[r.IntN(2)], must.Get(time.LoadLocation(zone))(t)))(t).Add(time.Duration(r.IntN(20*3600)) * time.Second)
	w := &world{t: t, r: r, began: began, now: began, wrong: map[clock]time.Duration{}}
	w.spec = &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: "tide"}, Spec: v1alpha1.TideSpec{
		Lend: v1alpha1.TideAmounts{Core: 80, Mem: 80}, Outside: v1alpha1.TideAmounts{Core: v1alpha1.Percent(r.IntN(2)) * 2 * percent, Mem: 80},
		Reclaim: v1alpha1.TideReclaim{Before: metav1.Duration{Duration: time.Duration(r.IntN(20)) * time.Minute}, Grace: metav1.Duration{Duration: time.Duration(r.IntN(60)) * time.Second}},
	}}
	for range 1 + r.IntN(2) {
		w.spec.Spec.Windows = append(w.spec.Spec.Windows, v1alpha1.TideWindow{
			Schedule: fmt.Sprintf("%d %d * * *", r.IntN(60), []int{0, 1, 2, 3, 22, 23}[r.IntN(6)]), TimeZone: zone,
			Duration: metav1.Duration{Duration: time.Duration(20+r.IntN(8*60)) * time.Minute},
		})
	}
	truth := must.Get(tide.Read(w.spec))(t)
	for at := began; at.Before(began.Add(2 * length)); {
		open, until := truth.Open(at)
		if open {
			w.windows = append(w.windows, span{at, until})
			at = until
		} else {
			at = truth.Next(at)
		}
	}
	w.startLeader()
	return w
}

// disturb has something happen, where nothing is wrong yet. It lasts for seconds or for hours.
func (w *world) disturb() {
	lasts := w.now.Add(time.Duration(1+w.r.IntN(90)) * time.Second)
	if w.r.IntN(3) == 0 {
		lasts = w.now.Add(time.Duration(1+w.r.IntN(180)) * time.Minute)
	}
	if lasts.After(w.quiet) {
		w.quiet = lasts
	}
	switch kind := w.r.IntN(6); kind {
	case 0:
		w.leader = away{lasts}
	case 1:
		w.agent, w.agentClock = away{w.now.Add(time.Duration(w.r.IntN(15)) * time.Second)}, nil
	case 2:
		w.api = away{lasts}
	default:
		// An agent learns within ten minutes that the API server's clock is right again.
		if w.now.Sub(w.right) > 10*time.Minute {
			by := []time.Duration{time.Hour, -time.Hour, time.Hour, -time.Hour, 20 * time.Second, -20 * time.Second}[w.r.IntN(6)]
			w.wrong[clock(kind-3)], w.right = by, lasts
		}
	}
}

func (w *world) startLeader() {
	w.leaderClock = w.newClock(leaderClock)
	w.contact(w.leaderClock)
	w.set = &tides.Set{Now: w.leaderClock.Read, Labels: func(string) (map[string]string, bool) { return nil, true }}
	w.set.Put(w.spec)
	w.leaderNext = w.now
}

// lead is the leader's turn: it writes the ledger, and places idle pods.
func (w *world) lead() {
	if w.leader.is(w.now) || w.api.is(w.now) {
		w.set = nil
		return
	}
	if w.set == nil {
		w.startLeader() // another replica
	}
	w.contact(w.leaderClock)
	if !w.now.Before(w.leaderNext) {
		next, write, again := w.set.Next("n", w.ledger)
		if write {
			w.ledger = next
		}
		w.leaderNext = w.now.Add(again)
	}
	now := w.leaderClock.Read().Now
	var deadline time.Time
	if w.r.IntN(2) == 0 {
		deadline = now.Add(time.Duration(w.r.IntN(30)) * time.Minute)
	}
	if core, mem := w.ledger.Allows(now); w.r.IntN(10) == 0 && w.sum()+percent <= min(core, mem) && (w.sum()+percent <= w.ledger.Outside.Core || w.ledger.AdmitsUntil(now, deadline)) {
		w.placed++
		w.slices = append(w.slices, nodetide.Slice{Pod: types.UID(fmt.Sprint(w.placed)), Ctr: "main", Idle: percent, Mem: percent, Since: now})
	}
}

// sum is what the idle slices are placed for.
func (w *world) sum() v1alpha1.Percent { return v1alpha1.Percent(len(w.slices)) * percent }

// enforce is the agent's turn: it ends what it has to.
func (w *world) enforce() {
	if w.agent.is(w.now) {
		return
	}
	if w.agentClock == nil {
		if w.api.is(w.now) {
			return // it begins when it knows the ledger
		}
		w.agentClock, w.agentNext = w.newClock(agentClock), w.now
	}
	if !w.api.is(w.now) {
		w.seen = w.ledger
		if !w.now.Before(w.agentNext) {
			w.contact(w.agentClock)
			w.agentNext = w.now.Add(time.Duration(300+w.r.IntN(300)) * time.Second) // as watches are renewed
		}
	}
	var end []nodetide.On
	w.shut, end = nodetide.Decide(w.seen, []nodetide.Device{{UUID: "GPU", Mem: 100, Slices: w.slices}}, w.agentClock.Read())
	w.lookedAt = w.now
	for _, over := range end {
		w.slices = slices.DeleteFunc(w.slices, func(s nodetide.Slice) bool { return s.Pod == over.Pod })
	}
}

// working is what slices with turns are placed for. Without an agent there are none.
func (w *world) working() v1alpha1.Percent {
	if w.agentClock == nil {
		return 0
	}
	all := w.sum()
	for _, s := range w.shut {
		if slices.ContainsFunc(w.slices, func(is nodetide.Slice) bool { return is.Pod == s.Pod }) {
			all -= percent
		}
	}
	return all
}

// open returns the window at a time or the next one, and whether it is open.
func (w *world) open(at time.Time) (is span, open bool) {
	i := slices.IndexFunc(w.windows, func(s span) bool { return at.Before(s.until) })
	return w.windows[i], !at.Before(w.windows[i].from)
}

// run lasts for length. ends is how often a window has ended with idle slices on the node.
func (w *world) run() (ends int) {
	window, wasOpen := w.open(w.now)
	ended := w.now // when the last window did
	grace, outside := w.spec.Spec.Reclaim.Grace.Duration, w.spec.Spec.Outside.Core
	for w.now.Sub(w.began) < length {
		change := window.from
		if wasOpen {
			change = window.until
		}
		step, chance := time.Minute, 200
		if change.Sub(w.now) < 100*time.Second || w.now.Sub(ended) < grace+100*time.Second {
			step, chance = look, 60
		}
		w.now = w.now.Add(step)
		if w.r.IntN(chance) == 0 {
			w.disturb()
		}
		if !w.now.Before(w.right) {
			clear(w.wrong)
		}
		next, isOpen := w.open(w.now)
		if wasOpen && next != window {
			ended = window.until
			if w.sum() > outside {
				ends++
			}
		}
		window, wasOpen = next, isOpen
		w.lead()
		w.enforce()
		if isOpen {
			w.checkOpen(window)
		}
		// A leader whose clock is right to MaxSkew may open that early.
		if !isOpen && window.from.Sub(w.now) > servertime.MaxSkew+time.Second {
			w.check(ended, grace, outside)
		}
	}
	return ends
}

// checkOpen is while the tide is open. Once nothing was disturbed for so long that each part has asked
// the API server, it lends, and nothing is shut.
func (w *world) checkOpen(window span) {
	if w.now.Sub(w.quiet) < 11*time.Minute || w.now.Sub(window.from) < 2*time.Minute || window.until.Sub(w.now) < servertime.MaxSkew {
		return
	}
	if core, mem := w.ledger.Allows(w.now); core != w.spec.Spec.Lend.Core || mem != w.spec.Spec.Lend.Mem || len(w.shut) > 0 || w.agentClock == nil {
		w.t.Fatalf("open for %v at %v, and shut: %d and %d, %v without turns, quiet for %v, ledger %+v", w.now.Sub(window.from), w.now, core, mem, w.shut, w.now.Sub(w.quiet), w.ledger)
	}
	w.undisturbed++
}

// check is at a time at which the tide is shut.
func (w *world) check(ended time.Time, grace time.Duration, outside v1alpha1.Percent) {
	wrong := ""
	switch {
	case w.working() > outside:
		wrong = "turns while it is shut"
	case w.sum() > outside && w.now.Sub(ended) >= grace && w.lookedAt.Equal(w.now):
		// An agent that cannot begin, since the API server is away, ends what is left at its first look.
		wrong = "not reclaimed"
	default:
		return
	}
	w.t.Fatalf("%s at %v, %v after the end, spec %+v, ledger %+v, by the agent %+v, clocks wrong by %v: idle slices for %d %%, %d %% with turns",
		wrong, w.now, w.now.Sub(ended), w.spec.Spec, w.ledger, w.seen, w.wrong, w.sum(), w.working())
}

// Idle slices get no turn once their window has ended, and are gone when its grace is over, by the true
// time: whatever is killed, and whichever one clock is wrong.
func TestTides(t *testing.T) {
	ends, placed, undisturbed := 0, 0, 0
	seed := uint64(0)
	for ; ends < simulated; seed++ {
		if seed == 3*simulated {
			t.Fatalf("%d ends of windows with idle slices in %d worlds", ends, seed)
		}
		w := newWorld(t, seed)
		ends += w.run()
		placed, undisturbed = placed+w.placed, undisturbed+w.undisturbed
	}
	if undisturbed < simulated {
		t.Errorf("only %d times nothing was disturbed while a tide was open", undisturbed)
	}
	t.Logf("%d ends of windows with idle slices in %d worlds; %d slices placed", ends, seed, placed)
}
