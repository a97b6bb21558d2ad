// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/audit"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/lending"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/tide"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	// lentLook is how often owners are looked at while memory is lent: a charge waits for 2 s at most.
	// unlentLook is how often otherwise.
	lentLook, unlentLook = 100 * time.Millisecond, time.Second
	// lendAfter is how long a container runs, and takes nothing back, before more of its memory is lent.
	lendAfter = 10 * time.Minute
	// exitWait bounds the wait until the driver has no process any more of idle slices that have ended.
	exitWait = time.Second
	// lendableStep is how coarse the published figure is: each change is a write.
	lendableStep v1alpha1.MiB = 256
)

// lender lends what containers were promised, and do not use, to idle slices, and takes it back. What is
// lent is in the limiter's files: after a restart it goes on from there. The table counts it, so idle
// slices start after owners' limits were lowered, and end before these are raised.
type lender struct {
	// on: without it nothing is lent, and what is lent is taken back.
	on    bool
	index func() *ledger.Index
	table *attach.ContainerTable
	// read and ready are the limiter's.
	read  func(mode.Container) ([]layout.Lendable, error)
	ready func(c mode.Container, uuid string, ready v1alpha1.MiB) error
	// peak is the account's, false where it is not known.
	peak func(ledger.Key) (v1alpha1.MiB, bool)
	// escaped reports whether a process uses the device that no limit holds.
	escaped func(uuid string) bool
	// processes are those of a container; using are those that the driver has on a device.
	processes func(mode.Container) []int
	using     func(uuid string) ([]int, error)
	// look has the releaser look at a pod, publish the status be written.
	look    func(types.UID)
	publish func()
	now     func() time.Time
	log     logr.Logger

	// state is the last look's, which others read.
	state atomic.Pointer[lendingState]
	// Of once alone: lent is whether anything is, next when to look where nothing is, unless the ledger has
	// changed since seen.
	lent bool
	next time.Time
	seen *ledger.Index
	// since is when each owner was seen first, or last took memory back.
	since map[owned]time.Time
	// confirmed are the owners whose ready amount this process has put in force.
	confirmed map[owned]bool
	// exits are, by device, the processes of idle slices that are being ended.
	exits map[string]exits
}

func (a *agent) newLender() *lender {
	return &lender{
		on: a.options.LendMemory, index: a.ledger.Index, table: a.table, read: a.limiter.Lendable, ready: a.limiter.SetReady,
		peak: func(key ledger.Key) (v1alpha1.MiB, bool) { return a.account.ExpectedPeak(key) },
		escaped: func(uuid string) bool {
			return slices.ContainsFunc(a.auditor.Findings(), func(f audit.Finding) bool { return f.UUID == uuid })
		},
		processes: func(c mode.Container) (pids []int) {
			usage, err := a.limiter.Usage(c)
			if err != nil {
				return nil
			}
			for _, p := range usage.Processes {
				pids = append(pids, p.HostPID)
			}
			return pids
		},
		using: func(uuid string) ([]int, error) {
			library, err := a.watcher.Library()
			if err != nil {
				return nil, err
			}
			return library.Processes(uuid)
		},
		look: func(pod types.UID) { a.releaser.Look(pod) }, publish: a.writer.Publish, now: time.Now, log: a.options.Log.WithName("lend"),
	}
}

// idleEnded reports whether the node ends the pod's idle slice, whatever the ledger says.
func (a *agent) idleEnded(pod types.UID) bool { return a.tides.isOver(pod) || a.lender.isEnded(pod) }

// owned is a container's memory of a device.
type owned struct{ id, uuid string }

type exits struct {
	pids  []int
	until time.Time
}

type lendingState struct {
	lendable map[string]v1alpha1.MiB
	ended    map[types.UID]bool
}

// isEnded reports whether the pod's idle slice is to be ended, since it has lent memory that is needed.
func (l *lender) isEnded(pod types.UID) bool {
	s := l.state.Load()
	return s != nil && s.ended[pod]
}

// lendable is how much of the device's memory may be lent, in steps.
func (l *lender) lendable(uuid string) v1alpha1.MiB {
	s := l.state.Load()
	if s == nil {
		return 0
	}
	return s.lendable[uuid]
}

func (l *lender) run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { l.once() }, lentLook)
	return nil
}

// owner is a container with memory of a device.
type owner struct {
	lending.Owner
	of mode.Container
}

// once looks once.
func (l *lender) once() {
	index, now := l.index(), l.now()
	first := l.state.Load() == nil
	// Before the runtime's first list nothing is known of what runs.
	if index.UID == "" || first && !l.table.Synced() {
		return
	}
	if !first && !l.lent && (!l.on && !index.Lent || l.seen == index && now.Before(l.next)) {
		return
	}
	l.next, l.seen = now.Add(unlentLook), index
	if l.since == nil {
		l.since, l.confirmed, l.exits = map[owned]time.Time{}, map[owned]bool{}, map[string]exits{}
	}
	entries := l.table.All()
	owners := l.owners(entries, index, now)
	state := &lendingState{map[string]v1alpha1.MiB{}, map[types.UID]bool{}}
	l.lent = false
	for uuid, of := range owners {
		l.device(uuid, of, entries, index, state)
	}
	for _, d := range index.Idle {
		if owners[d.UUID] == nil {
			l.device(d.UUID, nil, entries, index, state)
		}
	}
	before := l.state.Swap(state)
	for pod := range state.ended {
		l.look(pod)
	}
	if before == nil || !maps.Equal(before.lendable, state.lendable) {
		l.publish()
	}
}

// owners are the containers whose memory may be lent, by device.
func (l *lender) owners(entries []attach.Entry, index *ledger.Index, now time.Time) map[string][]owner {
	all, seen := map[string][]owner{}, map[owned]bool{}
	for _, e := range entries {
		if !e.Prepared || e.PID == 0 || e.Grants[0].Mode != v1alpha1.ModeLimiter || e.Grants[0].Idle > 0 {
			continue
		}
		devices, err := l.read(e.Container)
		if err != nil {
			continue // it has ended, or is of a release before
		}
		peak, known := l.peak(e.Key())
		for _, d := range devices {
			key := owned{e.ID, d.UUID}
			if seen[key] = true; l.since[key].IsZero() {
				l.since[key] = now
			}
			o := lending.Owner{
				ID: e.ID, Limit: v1alpha1.MiBFromBytes(d.LimitBytes), Ready: v1alpha1.MiBFromBytes(d.ReadyBytes),
				Used: ceiling(d.ChargedBytes), Wanted: ceiling(d.WantedBytes), Peak: peak,
				Settled: known && now.Sub(l.since[key]) >= lendAfter,
			}
			if !isWhole(index.Grants(e.Key()), d.UUID, o.Limit) {
				o.Wanted = o.Limit
			}
			if o.Takes() {
				l.since[key] = now
			}
			all[d.UUID] = append(all[d.UUID], owner{o, e.Container})
		}
	}
	maps.DeleteFunc(l.since, func(key owned, _ time.Time) bool { return !seen[key] })
	maps.DeleteFunc(l.confirmed, func(key owned, _ bool) bool { return !seen[key] })
	return all
}

// isWhole reports whether the ledger grants the container that much of the device, to no other container
// of its pod as well, and is not changing it.
func isWhole(grants []ledger.Grant, uuid string, limit v1alpha1.MiB) bool {
	return slices.ContainsFunc(grants, func(g ledger.Grant) bool {
		return g.UUID == uuid && g.Mem == limit && g.PodMem == g.Mem && g.Resize.Number == 0
	})
}

func ceiling(bytes uint64) v1alpha1.MiB { return v1alpha1.MiBFromBytes(bytes + 1<<20 - 1) }

// device lends of one device, and takes back.
func (l *lender) device(uuid string, owners []owner, entries []attach.Entry, index *ledger.Index, state *lendingState) {
	d := lending.Device{Granted: index.Granted(uuid).Mem, Off: !l.on || l.escaped(uuid)}
	for i := range owners {
		d.Owners = append(d.Owners, owners[i].Owner)
	}
	if d.Mem = index.Mem(uuid); d.Mem == 0 {
		return
	}
	if i := slices.IndexFunc(index.Idle, func(on tide.Device) bool { return on.UUID == uuid }); i >= 0 {
		for _, s := range index.Idle[i].Slices {
			if index.Leaving(s.Pod) {
				d.Leaving += s.Mem
			} else {
				d.Idle = append(d.Idle, s)
			}
		}
	}
	decided := lending.Decide(d)
	if lendable := decided.Lendable / lendableStep * lendableStep; lendable > 0 {
		state.lendable[uuid] = lendable
	}
	for _, pod := range decided.End {
		if !l.isEnded(pod) {
			l.end(uuid, pod, entries)
		}
		state.ended[pod] = true
	}
	for i := range owners {
		o := &owners[i]
		if err := l.lend(uuid, o, o.Limit-decided.Lend[o.ID]); err != nil {
			l.log.V(1).Info("Cannot change what of a container's memory is lent; trying again", "pod", o.of.Owner, "container", o.of.Name, "err", err)
		}
		l.lent = l.lent || o.Lent() > 0
	}
}

// end notes the processes of an idle slice that is being ended.
func (l *lender) end(uuid string, pod types.UID, entries []attach.Entry) {
	x := l.exits[uuid]
	x.until = l.now().Add(exitWait)
	for _, e := range entries {
		if e.Pod == pod {
			x.pids = append(x.pids, l.processes(e.Container)...)
		}
	}
	l.exits[uuid] = x
	l.log.Info("Ending an idle slice: the memory that was lent to it is needed", "podUID", pod, "gpu", uuid)
}

// exited reports whether the driver has none of the processes any more that were ended on the device.
func (l *lender) exited(uuid string) bool {
	x, ending := l.exits[uuid]
	if !ending {
		return true
	}
	pids, err := l.using(uuid)
	uses := err != nil || slices.ContainsFunc(pids, func(pid int) bool { return slices.Contains(x.pids, pid) })
	if uses && l.now().Before(x.until) {
		return false
	}
	delete(l.exits, uuid)
	return true
}

// lend brings what is ready of an owner's memory to that amount. What is lowered is in force before it is
// counted, and what is raised counts before it is in force.
func (l *lender) lend(uuid string, o *owner, ready v1alpha1.MiB) error {
	key := owned{o.ID, uuid}
	if o.Lent() > 0 && !l.confirmed[key] { // an agent before may not have put it in force
		l.confirmed[key] = l.ready(o.of, uuid, o.Ready) == nil
	}
	if o.Lent() > 0 && l.confirmed[key] { // the table may be a new one
		if err := l.table.Lend(o.ID, uuid, o.Ready); err != nil {
			return err
		}
	}
	switch {
	case ready > o.Ready:
		if !l.exited(uuid) {
			return nil
		}
		if err := l.table.Lend(o.ID, uuid, ready); err != nil {
			return err // idle slices have not ended yet
		}
		if ready == o.Limit {
			ready = 0
		}
		return l.ready(o.of, uuid, ready)
	case ready < o.Ready:
		if err := l.ready(o.of, uuid, ready); err != nil {
			return err // it has come to use more
		}
		l.confirmed[key], o.Ready = true, ready
		return l.table.Lend(o.ID, uuid, ready)
	}
	return nil
}
