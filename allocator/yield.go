// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/group"
)

// One worker decides for all tenants, and how long a decision takes is for the authors of pods
// to say: by what the filters have to compare, and by how many members a gang has. So the worker
// yields. The pods of a round are decided until its time is over, and so are its gangs; the rest
// is queued behind what has arrived, and the next round begins with one pod of each namespace. The search for
// places for a gang goes on where it was in a later round, if what it has chosen is as it was.
// Else it begins again after a pause. Pause and time double with each restart, and in the end it
// is done at one go, so that a gang of a thousand in a busy cluster gets its places too.

const (
	// roundTime is how long pods of one round are decided, and gangs, before others are.
	roundTime = 100 * time.Millisecond
	// maxRestarts is how often the time of one search doubles: to 0.8 s. A pod that waits
	// for another tenant's to be bound may come to such a search twice within its 5 s.
	maxRestarts = 3
	// lastRestart is the one after which a search is done at one go: what changes more often
	// than it may take at a time would keep it from its end for ever.
	lastRestart = maxRestarts + 4
	// restartPause is how long a search waits before it begins again, in times of what it
	// may then take at a time: two thirds of the worker's time are for others.
	restartPause = 2
)

// yielded is why something was not looked at to the end. It is looked at again after a pause.
type yielded struct{ pause time.Duration }

func (yielded) Error() string { return "others are served first" }

// errStale ends a search of which the choices are not as they were.
var errStale = errors.New("what was chosen has changed")

// search is the search for places for a gang, over as many rounds as it takes.
type search struct {
	// advance goes on with it, and returns true when it has paused and false when it is
	// over. It is nil when it is to begin. stop ends one that has paused.
	advance func() bool
	stop    func()
	// pods and need are what it is for.
	pods []*corev1.Pod
	need int
	// until is when it is to pause, which yield does; yield returns false when it is to end.
	until time.Time
	yield func(struct{}) bool
	// paused is true once it did. wakes is how often wake was called before it began.
	paused bool
	wakes  int
	// notBefore is when it may begin again, restarts how often it had to.
	notBefore time.Time
	restarts  int
	// visited is true once the present look at the gang has come to it.
	visited bool
	spent   time.Duration

	choices []choice
	miss    *misfit
	err     error
}

// fitInTurn is fit that yields.
func (a *Allocator) fitInTurn(ctx context.Context, name group.Name, asks []ask, need int) ([]choice, *misfit, error) {
	s := a.searches[name]
	if s == nil {
		s = &search{}
		a.searches[name] = s
	}
	s.visited = true
	start := a.Clock.Now()
	if wait := s.notBefore.Sub(start); wait > 0 {
		return nil, nil, yielded{wait}
	}
	same := s.need == need && slices.EqualFunc(asks, s.pods, func(p ask, q *corev1.Pod) bool { return p.pod == q })
	switch {
	case s.advance == nil:
		a.beginSearch(ctx, s, asks, need)
	case !same:
		s.stop()
		return nil, nil, a.restart(s)
	}
	if s.until = start.Add(s.time()); s.restarts >= lastRestart {
		s.until = start.Add(time.Hour)
	}
	a.searching = s
	paused := s.advance()
	a.searching = nil
	s.spent += a.Clock.Since(start)
	if paused {
		return nil, nil, yielded{}
	}
	decisionSeconds.Observe(s.spent.Seconds())
	switch {
	case errors.Is(s.err, errStale):
		return nil, nil, a.restart(s)
	case s.miss != nil && s.paused && s.wakes != a.timesWoken():
		// There may be room now where it looked before that.
		again := a.restart(s)
		a.mu.Lock()
		a.enqueueAfter(item{gang: name}, again.pause)
		a.mu.Unlock()
	default:
		delete(a.searches, name)
	}
	return s.choices, s.miss, s.err
}

func (a *Allocator) beginSearch(ctx context.Context, s *search, asks []ask, need int) {
	s.pods, s.need, s.paused, s.spent, s.wakes = nil, need, false, 0, a.timesWoken()
	for _, p := range asks {
		s.pods = append(s.pods, p.pod)
	}
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		s.yield = yield
		s.choices, s.miss, s.err = a.fit(ctx, asks, need)
	})
	s.advance, s.stop = func() bool { _, paused := next(); return paused }, stop
}

// time is how long it may take before it pauses.
func (s *search) time() time.Duration { return roundTime << min(s.restarts, maxRestarts) }

// restart has the search begin again, after its pause.
func (a *Allocator) restart(s *search) yielded {
	s.restarts, s.advance = s.restarts+1, nil
	pause := restartPause * s.time()
	s.notBefore = a.Clock.Now().Add(pause)
	return yielded{pause}
}

// endSearches ends those that ok takes.
func (a *Allocator) endSearches(ok func(*search) bool) {
	maps.DeleteFunc(a.searches, func(_ group.Name, s *search) bool {
		if ok(s) && s.advance != nil {
			s.stop()
		}
		return ok(s)
	})
}

func (a *Allocator) timesWoken() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wakes
}

// breathe pauses a search that has taken its time. Others are decided during the pause as if nothing
// were chosen.
func (t *trial) breathe(ctx context.Context) error {
	s := t.searching
	if s == nil || t.Clock.Now().Before(s.until) {
		return nil
	}
	t.end()
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
	for _, on := range t.touched {
		if t.index.Behind(on.shown) == nil {
			return errStale
		}
	}
	return t.reserveAgain(ctx)
}

// hosts are the nodes of the choices as the scheduler counts them now.
func (t *trial) hosts() (map[string]feasible.Host, error) {
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
func (t *trial) reserveAgain(ctx context.Context) error {
	if err := t.reserveForOthers(ctx); err != nil {
		return err
	}
	for i, c := range t.choices {
		if t.Filters.Undecided(c.pod) == nil {
			continue
		}
		if err := t.count(i); err != nil {
			return err
		}
		if err := t.reserveOn(ctx, c.pod, c.plan.Node); err != nil {
			return err
		}
	}
	return nil
}

// turns is how many of each namespace were looked at since more was due than there was time
// for; nil while there is time for all.
type turns map[string]int

// sort has those of namespaces go first of which the fewest were looked at: what one tenant has
// looked at again and again, and what takes long, is then not before all that others have.
func (t turns) sort(items []item, at []int) {
	if t == nil {
		return
	}
	nth, of := map[int]int{}, maps.Clone(t)
	for _, i := range at {
		nth[i] = of[items[i].namespace()]
		of[items[i].namespace()]++
	}
	slices.SortStableFunc(at, func(i, j int) int { return nth[i] - nth[j] })
}
