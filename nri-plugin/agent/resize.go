// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/worker"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	// resizeRetry and maxResizeRetry are the pauses after a resize that failed, as where the driver
	// doesn't answer.
	resizeRetry    = 200 * time.Millisecond
	maxResizeRetry = 10 * time.Second
	// resizeTimeout bounds a read of the ledger.
	resizeTimeout = 5 * time.Second
	// noticePoll is how often it is looked whether memory was freed.
	noticePoll = 100 * time.Millisecond
)

// resizer puts in force what the ledger makes of the slices of running containers. It keeps
// nothing: after a crash it does the same again.
type resizer struct {
	index func() *ledger.Index
	// fetch reads the ledger from the API server.
	fetch func(context.Context) (*ledger.Index, error)
	table *attach.ContainerTable
	// resize is the limiter's, inForce what is in force now.
	resize  func(c mode.Container, pid uint32, uuid string, core v1alpha1.Percent, mem v1alpha1.MiB) error
	inForce func(mode.Container) []ledger.Grant
	// atLeast are a container's slices with no less than what is in force.
	atLeast func(mode.Container) []ledger.Grant
	// notice writes what is in force for programs to read, and with a deadline what will be.
	notice func(c mode.Container, now time.Time, next []ledger.Grant, deadline time.Time) error
	// grace is how long programs have to free memory for a smaller share; deadlines are those of
	// resizes that wait for it, by the runtime's id.
	grace     time.Duration
	deadlines map[string]deadline
	// refusals are the last ones, of resizes that the ledger still has.
	refusals map[ledger.Key]refusal
	now      func() time.Time
	log      logr.Logger
	queue    worker.Queue[struct{}]
}

// refusal is that of a resize.
type refusal struct {
	number int64
	why    string
}

// deadline is until when a resize waits for memory to be freed.
type deadline struct {
	number int64
	at     time.Time
}

// look asks for a comparison with the ledger. It never blocks.
func (r *resizer) look() { r.queue.Add(struct{}{}) }

func (r *resizer) run(ctx context.Context) error {
	return worker.Run(ctx, r.queue, func(struct{}) (time.Duration, error) {
		err := r.all(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.Error(err, "Cannot resize containers; trying again")
		}
		if len(r.deadlines) > 0 {
			return noticePoll, err
		}
		return 0, err
	})
}

// all resizes the containers whose resize is neither in force nor refused.
func (r *resizer) all(ctx context.Context) error {
	index := r.index()
	r.recount(index)
	due := slices.DeleteFunc(r.table.All(), func(e attach.Entry) bool { return !r.due(e, index) })
	maps.DeleteFunc(r.deadlines, func(id string, _ deadline) bool {
		return !slices.ContainsFunc(due, func(e attach.Entry) bool { return e.ID == id })
	})
	if len(due) == 0 {
		return nil
	}
	// The watch may be behind, and what it shows have been taken back.
	ctx, stop := context.WithTimeout(ctx, resizeTimeout)
	defer stop()
	index, err := r.fetch(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(r.refusals, func(key ledger.Key, _ refusal) bool { return ledger.ResizeOf(index.Grants(key)) == 0 })
	for _, e := range due {
		switch why := r.wasRefused(e.Key(), index); {
		case !r.due(e, index):
		case why != "":
			r.table.Acted(e.ID, ledger.ResizeOf(index.Grants(e.Key())), why)
		default:
			err = errors.Join(err, r.one(e, index.Grants(e.Key())))
		}
	}
	return err
}

// wasRefused is why the container's resize was refused, in an earlier run or by an earlier agent. The
// allocator may go on from that at any time.
func (r *resizer) wasRefused(key ledger.Key, index *ledger.Index) string {
	number := ledger.ResizeOf(index.Grants(key))
	if was := r.refusals[key]; number != 0 && was.number == number {
		return was.why
	}
	delete(r.refusals, key)
	for _, s := range index.InUse() {
		if number != 0 && s.Pod == key.Pod && s.Ctr == key.Container && s.Resized == number && s.Refused != "" {
			return s.Refused
		}
	}
	return ""
}

// recount has containers count with what the ledger grants now, and no less than what is in force in them.
// An agent that was started again may have found them by an older ledger.
func (r *resizer) recount(index *ledger.Index) {
	for _, e := range r.table.All() {
		grants := index.Grants(e.Key())
		if !e.Prepared || e.PID == 0 || len(grants) == 0 || ledger.ResizeOf(grants) != 0 || slices.EqualFunc(e.Grants, grants, sameAmounts) {
			continue
		}
		e.Grants = grants
		if err := r.table.Regrant(e.ID, r.atLeast(e.Container)); err != nil {
			r.log.Info("Cannot count a container by its ledger", "pod", e.Owner, "container", e.Name, "err", err)
		}
	}
}

func sameAmounts(a, b ledger.Grant) bool {
	return a.UUID == b.UUID && a.Core == b.Core && a.Mem == b.Mem
}

// due reports whether the container's resize is to be put in force. Without one, a container may
// have begun with less than its slices are now.
func (r *resizer) due(e attach.Entry, index *ledger.Index) bool {
	grants := index.Grants(e.Key())
	number := ledger.ResizeOf(grants)
	if !e.Prepared || e.PID == 0 || e.Status == nil {
		return false
	}
	if number != 0 {
		return slices.ContainsFunc(e.Status, func(s v1alpha1.SliceStatus) bool { return s.Resized != number })
	}
	return slices.ContainsFunc(e.Grants, func(has ledger.Grant) bool {
		return has.Resize.Number != 0 && slices.ContainsFunc(grants, func(g ledger.Grant) bool {
			return g.UUID == has.UUID && (g.Core > has.Core || g.Mem > has.Mem)
		})
	})
}

// one resizes a container. The grants count with the larger of before and after until the end.
func (r *resizer) one(e attach.Entry, grants []ledger.Grant) error {
	if err := r.table.Regrant(e.ID, grants); err != nil {
		return err
	}
	before := r.inForce(e.Container)
	refused := ""
	for i, g := range grants {
		to := v1alpha1.Amounts{Core: g.Core, Mem: g.Mem}
		if g.Resize.Number != 0 {
			to = g.Resize.Amounts
		}
		err := r.resize(e.Container, e.PID, g.UUID, to.Core, to.Mem)
		_, infeasible := errors.AsType[*layout.InfeasibleError](err)
		switch {
		case err == nil:
			continue
		case errors.Is(err, fs.ErrNotExist):
			return nil // it has ended
		case !infeasible && !errors.Is(err, layout.ErrOlderLibrary):
			return err
		}
		waits := infeasible && r.waits(e, grants)
		if refused = shorten(err.Error()); waits {
			refused = ""
		}
		for j := range grants[:i] {
			if err := r.back(e, before, grants[j].UUID); err != nil {
				return err
			}
		}
		if waits {
			return nil
		}
		break
	}
	delete(r.deadlines, e.ID)
	if err := r.notice(e.Container, r.now(), nil, time.Time{}); err != nil {
		return err
	}
	now := slices.Clone(grants)
	for _, has := range r.inForce(e.Container) {
		if i := slices.IndexFunc(now, func(g ledger.Grant) bool { return g.UUID == has.UUID }); i >= 0 {
			now[i].Core, now[i].Mem = has.Core, has.Mem
		}
	}
	if err := r.table.Regrant(e.ID, now); err != nil {
		return err
	}
	if refused != "" {
		r.refusals[e.Key()] = refusal{ledger.ResizeOf(grants), refused}
	}
	r.table.Acted(e.ID, ledger.ResizeOf(grants), refused)
	return nil
}

// waits reports whether the container's programs still have time to free memory. It gives them notice
// once.
func (r *resizer) waits(e attach.Entry, grants []ledger.Grant) bool {
	if r.grace <= 0 {
		return false
	}
	number, until := ledger.ResizeOf(grants), r.deadlines[e.ID]
	if until.number != number {
		until = deadline{number, r.now().Add(r.grace)}
		var next []ledger.Grant
		for _, g := range grants {
			if g.Resize.Number != 0 {
				g.Core, g.Mem = g.Resize.Core, g.Resize.Mem
			}
			next = append(next, g)
		}
		if err := r.notice(e.Container, r.now(), next, until.at); err != nil {
			r.log.Error(err, "Cannot give notice of a resize", "pod", e.Owner, "container", e.Name)
		}
		r.deadlines[e.ID] = until
	}
	return r.now().Before(until.at)
}

// back puts in force again what a device's slice was before.
func (r *resizer) back(e attach.Entry, before []ledger.Grant, uuid string) error {
	i := slices.IndexFunc(before, func(g ledger.Grant) bool { return g.UUID == uuid })
	if i < 0 {
		return nil
	}
	return r.resize(e.Container, e.PID, uuid, before[i].Core, before[i].Mem)
}

// shorten is the text as far as the ledger has room for it.
func shorten(text string) string { return text[:min(len(text), maxRefused)] }

// maxRefused is what SliceStatus.Refused has room for, with a reserve for what is no ASCII.
const maxRefused = 1000
