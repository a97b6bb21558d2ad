// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/podrequest"
)

// One worker decides for all tenants, and how long a decision takes is for the authors of pods
// to say: by what the filters have to compare, and by how many members a gang has. So the worker
// yields. The pods of a round are decided until its time is over, and so are its gangs; the rest
// is queued behind what has arrived, and the next round begins with one pod of each namespace. The search for
// places for a gang goes on where it was in a later round, if what it has chosen is as it was.
// Else it begins again after a pause. Pause and time double with each restart, and in the end it
// is done at one go, so that a gang of a thousand in a busy cluster gets its places too.

const (
	// RoundTime is how long pods of one round are decided, and gangs, before others are.
	RoundTime = 100 * time.Millisecond
	// MaxRestarts is how often the time of one search doubles: to 0.8 s. A pod that waits
	// for another tenant's to be bound may come to such a search twice within its 5 s.
	MaxRestarts = 3
	// lastRestart is the one after which a search is done at one go: what changes more often
	// than it may take at a time would keep it from its end for ever.
	lastRestart = MaxRestarts + 4
	// RestartPause is how long a search waits before it begins again, in times of what it
	// may then take at a time. Two thirds of the worker's time are for others.
	RestartPause = 2
)

// errStale ends a search of which the choices are not as they were.
var errStale = errors.New("what was chosen has changed")

// search is the search for places for a gang, over as many rounds as it takes.
type search struct {
	// advance goes on with it, and returns true when it has paused and false when it is
	// over. It is nil when it is to begin. stop ends one that has paused.
	advance func() bool
	stop    func()
	// pods and need are what it is for.
	pods   []*corev1.Pod
	need   int
	within Within
	// until is when it is to pause, which yield does; yield returns false when it is to end.
	until time.Time
	yield func(struct{}) bool
	// paused is true once it did. moves is how often unschedulable pods were moved before it began.
	paused bool
	moves  int
	// notBefore is when it may begin again, restarts how often it had to.
	notBefore time.Time
	restarts  int
	// visited is true once the present look at the gang has come to it.
	visited bool
	spent   time.Duration

	choices []binding.Assignment
	miss    *GangDiagnosis
	err     error
}

// ScheduleGang chooses for at least need of a gang's members, and for as many more as fit
// too. It yields (queue.Yield): the search goes on at the next call.
func (sc *Scheduler) ScheduleGang(ctx context.Context, name podrequest.Group, asks []Request, need int, within Within) ([]binding.Assignment, *GangDiagnosis, error) {
	s := sc.searches[name]
	if s == nil {
		s = &search{}
		sc.searches[name] = s
	}
	s.visited = true
	start := sc.Clock.Now()
	if wait := s.notBefore.Sub(start); wait > 0 {
		return nil, nil, queue.Yield{Pause: wait}
	}
	same := s.need == need && slices.Equal(s.within.Keys, within.Keys) && slices.Equal(s.within.Nodes, within.Nodes) && slices.EqualFunc(asks, s.pods, func(p Request, q *corev1.Pod) bool { return p.Pod == q })
	switch {
	case s.advance == nil:
		sc.beginSearch(ctx, name, s, asks, need, within)
	case !same:
		s.stop()
		return nil, nil, sc.restart(s)
	}
	if s.until = start.Add(s.time()); s.restarts >= lastRestart {
		s.until = start.Add(time.Hour)
	}
	sc.searching = s
	paused := s.advance()
	sc.searching = nil
	s.spent += sc.Clock.Since(start)
	if paused {
		return nil, nil, queue.Yield{}
	}
	decisionSeconds.Observe(s.spent.Seconds())
	switch {
	case errors.Is(s.err, errStale):
		return nil, nil, sc.restart(s)
	case s.miss != nil && s.paused && s.moves != sc.Queue.Moves():
		// There may be room now where it looked before that.
		again := sc.restart(s)
		sc.Queue.AddAfter(queue.Item{Gang: name}, again.Pause)
	default:
		delete(sc.searches, name)
	}
	return s.choices, s.miss, s.err
}

func (sc *Scheduler) beginSearch(ctx context.Context, name podrequest.Group, s *search, asks []Request, need int, within Within) {
	s.within = within
	s.pods, s.need, s.paused, s.spent, s.moves = nil, need, false, 0, sc.Queue.Moves()
	for _, p := range asks {
		s.pods = append(s.pods, p.Pod)
	}
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		s.yield = yield
		s.choices, s.miss, s.err = sc.fit(ctx, queue.Item{Gang: name}, asks, need, within)
	})
	s.advance, s.stop = func() bool { _, paused := next(); return paused }, stop
}

// time is how long it may take before it pauses.
func (s *search) time() time.Duration { return RoundTime << min(s.restarts, MaxRestarts) }

// restart has the search begin again, after its pause.
func (sc *Scheduler) restart(s *search) queue.Yield {
	s.restarts, s.advance = s.restarts+1, nil
	pause := RestartPause * s.time()
	s.notBefore = sc.Clock.Now().Add(pause)
	return queue.Yield{Pause: pause}
}

// endSearches ends those that ok takes.
func (sc *Scheduler) endSearches(ok func(*search) bool) {
	maps.DeleteFunc(sc.searches, func(_ podrequest.Group, s *search) bool {
		if ok(s) && s.advance != nil {
			s.stop()
		}
		return ok(s)
	})
}

// breathe pauses a search that has taken its time. Others are decided during the pause as if nothing
// were chosen.
func (t *cycle) breathe(ctx context.Context) error {
	s := t.searching
	if s == nil || t.Clock.Now().Before(s.until) {
		return nil
	}
	t.end()
	against := t.seen.against
	before, err := t.hosts()
	if err != nil {
		return err
	}
	s.paused = true
	if !s.yield(struct{}{}) {
		return errStale
	}
	after, err := t.hosts()
	switch {
	case err != nil:
		return err
	case !maps.Equal(before, after):
		return errStale
	}
	if t.look(t.asker); !slices.Equal(against, t.seen.against) {
		return errStale
	}
	for _, on := range t.touched {
		if t.Cache.Index.Behind(on.shown) == nil {
			return errStale
		}
	}
	return t.reserveAgain(ctx)
}

// rest pauses a search that has taken its time, between two tries: nothing is chosen then.
func (sc *Scheduler) rest() error {
	s := sc.searching
	if s == nil || sc.Clock.Now().Before(s.until) {
		return nil
	}
	s.paused = true
	if !s.yield(struct{}{}) {
		return errStale
	}
	return nil
}

// hosts are the nodes of the choices as the scheduler counts them now.
func (t *cycle) hosts() (map[string]feasible.Host, error) {
	if err := t.survey(); err != nil {
		return nil, err
	}
	hosts := map[string]feasible.Host{}
	for name := range t.touched {
		hosts[name] = t.Filters.Host(name)
	}
	return hosts, nil
}

// reserveAgain has the filters take for taken what the choices take of volumes and of other
// drivers' devices, after a pause.
func (t *cycle) reserveAgain(ctx context.Context) error {
	if err := t.reserveForOthers(ctx); err != nil {
		return err
	}
	for i, c := range t.choices {
		if t.Filters.Undecided(c.Pod) == nil {
			continue
		}
		if err := t.count(i); err != nil {
			return err
		}
		if err := t.reserveOn(ctx, c.Pod, c.Plan.Node); err != nil {
			return err
		}
	}
	return nil
}

// endUnvisited begins a look at a gang; what it returns ends it. A search that ScheduleGang has not
// gone on with by then is over: what does not come to it is about other things, as that a
// member is gone.
func (sc *Scheduler) endUnvisited(name podrequest.Group) (end func()) {
	s := sc.searches[name]
	if s == nil {
		return func() {}
	}
	s.visited = false
	return func() { sc.endSearches(func(other *search) bool { return other == s && !s.visited }) }
}
