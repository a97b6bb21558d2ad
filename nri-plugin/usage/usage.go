// SPDX-License-Identifier: Apache-2.0

// Package usage owns the account of the node's GPUs, in hours and sums, and what workloads have used.
// A file keeps both over restarts of the agent, and the object SliceUsage shows them.
//
// Each second of each device is counted once. Slices that the ledger grants or holds are their
// namespaces' time. The rest is free, or unavailable where the device takes no slices. The
// seconds before a change are counted by the state before it.
//
// A gap, in which the agent was away, is counted when ledger and devices are seen again.
// Slices that the ledger has then were granted from their since on. The rest of the gap is unknown:
// released slices leave no trace, and no container with a slice starts without the agent.
// A new device counts from the gap's end on. The whole gap of a removed one is unknown.
//
// Used time is the containers' own word, and decides nothing. It owns since when slices are idle, too,
// which is partly their word.
package usage

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

const (
	// period is the least time between two looks at the counters.
	period = 10 * time.Second
	// savePeriod is the least time between two writes of the file, unless what is granted has
	// changed.
	savePeriod = time.Minute
)

// Sources of an account. All are required.
type Sources struct {
	// Node is the node's name.
	Node string
	// Path of the file. Its folder exists.
	Path string
	// Live reads from and writes to the API server.
	Live client.Client
	// State is what the node has and what the ledger grants; false before both were seen. It
	// must not block.
	State func() (now device.Snapshot, granted *ledger.Index, known bool)
	// Table and Modes find the containers' counters.
	Table *attach.ContainerTable
	Modes mode.Set
	// Workload is KIND/NAME of what made a container's pod; empty where that is not known. The
	// account waits for it without a lock.
	Workload func(mode.Container) string
	// Use is how much of a device is in use.
	Use func(uuid string) (device.Use, error)
	// Working are the containers, by the runtime's id, whose processes have worked on a device
	// in the driver's last sample period. An error means that not all of them are known.
	Working func(uuid string) (map[string]bool, error)
	// IdleAfter is how long a slice is idle before that is said, IdleGrain at most; 0 never says it.
	IdleAfter time.Duration
	// IdleChanged is called when other slices are idle than before. It must not block.
	IdleChanged func()
	Now         func() time.Time
	Log         logr.Logger
}

// Account counts. Its methods may be called at the same time.
type Account struct {
	from Sources

	// Of Look alone.
	looked, tried time.Time
	write         func(path string, text []byte) error

	mu   sync.Mutex
	kept kept
	// present is the state since kept.Account.Through; nil before the first.
	present map[string]present
	// changed: what is granted has changed since the file was written, at saved.
	changed bool
	saved   time.Time
	sums    []v1alpha1.ModelUsage
	// rests are the slices that did no work at the last look, idle those of them that are published.
	rests map[sliceKey]rest
	idle  map[sliceKey]time.Time
	// starving are the idle slices that waited and got next to nothing.
	starving map[sliceKey]starving
}

// present is a device as it is counted now.
type present struct {
	model     string
	mem       v1alpha1.MiB
	available bool
	shares    []share
}

// New makes an account. It goes on with the one in the file. A file that cannot be read is
// logged, and what the API server's object has is taken instead.
func New(from Sources) *Account {
	a := &Account{from: from, write: write}
	var err error
	if a.kept, err = load(from.Path); err != nil {
		from.Log.Error(err, "Cannot read the node's account; taking the last published one", "file", from.Path)
	}
	if a.kept.Account.Through.IsZero() {
		a.kept.Fresh = true
	}
	a.sums = a.kept.Account.DeepCopy().Sums
	return a
}

// Changed counts up to now, and takes what the node has and grants from now on. It never
// blocks.
func (a *Account) Changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.step()
	a.changed = true
}

// step counts up to now by the state before, and takes that of now.
func (a *Account) step() {
	snapshot, granted, known := a.from.State()
	if !known {
		return
	}
	book := book{a.kept.Account}
	now := a.from.Now().Unix()
	began := book.Through.Unix()
	switch {
	case book.Through.IsZero():
		book.Since, book.Through = unix(now), unix(now)
	case now <= began: // a clock that was put back: nothing is counted twice
	case a.present == nil:
		book.charge(began, now, a.away(&snapshot, granted, now))
		book.Through = unix(now)
	default:
		var all []span
		for _, d := range a.present {
			s := span{model: d.model, mem: d.mem, shares: d.shares, rest: free}
			if !d.available {
				s.rest = unavailable
			}
			all = append(all, s)
		}
		book.charge(began, now, all)
		book.Through = unix(now)
	}
	book.trim()
	a.kept.Account = book.SliceUsageStatus
	a.present, a.kept.Devices = stateOf(&snapshot, granted)
}

// away is how a time up to now is counted in which the agent was away.
func (a *Account) away(snapshot *device.Snapshot, granted *ledger.Index, now int64) (all []span) {
	for _, was := range a.kept.Devices {
		s := span{model: was.Model, mem: was.Mem, rest: unknown}
		if d, found := snapshot.Device(was.UUID); found {
			s.model, s.mem = d.Model, d.Mem
			for _, of := range granted.Shares(was.UUID) {
				since := now
				if !of.Since.IsZero() {
					since = of.Since.Unix()
				}
				s.shares = append(s.shares, share{of.Namespace, of.Amounts, since})
			}
		}
		all = append(all, s)
	}
	return all
}

// stateOf is how the devices are counted from now on.
func stateOf(snapshot *device.Snapshot, granted *ledger.Index) (map[string]present, []keptDevice) {
	all := make(map[string]present, len(snapshot.Devices))
	kept := make([]keptDevice, 0, len(snapshot.Devices))
	usable := map[string]bool{}
	for _, d := range snapshot.Usable() {
		usable[d.UUID] = true
	}
	for i := range snapshot.Devices {
		d := &snapshot.Devices[i]
		of := present{model: d.Model, mem: d.Mem, available: usable[d.UUID] && !granted.Cordoned(d.UUID)}
		sums := map[string]v1alpha1.Amounts{}
		for _, s := range granted.Shares(d.UUID) {
			sum := sums[s.Namespace]
			sums[s.Namespace] = v1alpha1.Amounts{Core: sum.Core + s.Core, Mem: sum.Mem + s.Mem}
		}
		for namespace, sum := range sums {
			of.shares = append(of.shares, share{namespace: namespace, amounts: sum})
		}
		all[d.UUID] = of
		kept = append(kept, keptDevice{UUID: d.UUID, Model: d.Model, Mem: d.Mem})
	}
	return all, kept
}

// Look reads the counters, writes the file and publishes, each when it is due. It may be
// called at any time.
func (a *Account) Look(ctx context.Context) error {
	now := a.from.Now()
	if !a.looked.IsZero() && now.Sub(a.looked) < period && now.After(a.looked) {
		return nil
	}
	counts, idle := a.measure()
	if idle {
		a.from.IdleChanged()
	}
	if !counts {
		return nil
	}
	a.looked = now
	due := a.due(now)
	if due {
		a.tried = now
		if err := a.adopt(ctx); err != nil {
			return errors.Join(err, a.save(now, false))
		}
	}
	// First: what is published and not in the file would be added to itself after a restart.
	if err := a.save(now, due); err != nil || !due {
		return err
	}
	return a.publish(ctx, now)
}

// Sums are those of the account as it is in the file: they never go back.
func (a *Account) Sums() []v1alpha1.ModelUsage {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept.Fresh {
		return nil
	}
	return a.sums
}
