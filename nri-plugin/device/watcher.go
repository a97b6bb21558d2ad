// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/v1alpha1"
)

// Timings of the watcher.
const (
	// DefaultPeriod between scans when no event asks for one earlier.
	DefaultPeriod = 10 * time.Second
	// eventWait bounds one wait in the C library, which cannot be cancelled.
	eventWait = 500 * time.Millisecond
	// firstPause is how often AwaitFirst looks.
	firstPause = 50 * time.Millisecond
	// openRetry bounds the pause between attempts to open NVML.
	openRetry = 15 * time.Second
	// failedScans in a row end the process: a replaced driver is only seen by a
	// process that loads the library again.
	failedScans = 3
	// patience is how long a scan may take, which is seconds under load, or a wait for an
	// event, before the last picture is not to be trusted. A GPU whose firmware hangs holds
	// up every call of NVML, for minutes or for good.
	patience = 30 * time.Second
)

// tolerance is the part of a device's memory (one in so many) by which it may
// fall short of what the ledger believes: what the driver keeps for itself moves
// by some MiB with its version and settings, and a pod that has its slice must
// not be shut out by that.
const tolerance = 100

// errSilent is the state while NVML takes too long.
var errSilent = fmt.Errorf("NVML has not answered for %s: a GPU hangs; see whether nvidia-smi answers on the node, and reboot it where it does not", patience)

// errOpening is the state before NVML has been opened for the first time.
var errOpening = errors.New("NVML is being opened")

// Watcher keeps the latest Snapshot and tells when it changes.
type Watcher struct {
	// Open loads NVML. It is called until it succeeds or the error is ErrReplaced,
	// and then never again.
	Open func() (Library, error)
	// Refine may mark devices of a fresh snapshot unhealthy for reasons that
	// NVML does not know. Optional.
	Refine func(*Snapshot)
	// Changed is called after every change of the snapshot or the error.
	Changed func()
	// Period between scans; DefaultPeriod when 0.
	Period time.Duration
	Log    logr.Logger

	state atomic.Pointer[state]
	// looking: scans come one after the other, so that the latest is the last.
	looking sync.Mutex
}

type state struct {
	library  Library
	snapshot Snapshot
	err      error
	scanned  bool
}

func (w *Watcher) load() *state {
	if s := w.state.Load(); s != nil {
		return s
	}
	return &state{err: errOpening}
}

// Snapshot is the latest picture. scanned is false until there has been one:
// nothing may be concluded from the absence of a device before that.
func (w *Watcher) Snapshot() (s Snapshot, scanned bool) {
	now := w.load()
	return now.snapshot, now.scanned
}

// Err says why the latest picture is not to be trusted, nil when it is.
func (w *Watcher) Err() error { return w.load().err }

// Library is NVML once it is open, or an error that says why it is not, or that it would
// not answer.
func (w *Watcher) Library() (Library, error) {
	now := w.load()
	if now.library == nil || errors.Is(now.err, errSilent) {
		return nil, now.err
	}
	return now.library, nil
}

// Check confirms with the driver that a device can carry a slice now: it
// answers, is healthy, and is not smaller than the ledger believes. Whether it
// can do so in the slice's mode is the mode's to say.
func (w *Watcher) Check(uuid string, want v1alpha1.MiB) error {
	now := w.load()
	if now.err != nil {
		return fmt.Errorf("the node's NVML does not work: %w; check nvidia-smi on the node", now.err)
	}
	d, found := now.snapshot.Device(uuid)
	switch {
	case !found:
		return fmt.Errorf("device %s is not on this node any more; delete the pod so that it is placed again", uuid)
	case !d.Healthy:
		return fmt.Errorf("device %s is unhealthy: %s; delete the pod so that it is placed on another device", uuid, d.Reason)
	}
	total, err := now.library.Memory(uuid)
	if err != nil {
		return fmt.Errorf("device %s does not answer: %w; check nvidia-smi on the node", uuid, err)
	}
	if total < want-want/tolerance {
		return fmt.Errorf("device %s has %d MiB and the ledger counts on %d MiB; delete the pod so that it is placed again", uuid, total, want)
	}
	return nil
}

// AwaitFirst returns once there has been a first look at the devices, with
// success or not, or ctx has ended.
func (w *Watcher) AwaitFirst(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, firstPause, true, func(context.Context) (bool, error) {
		return w.state.Load() != nil, nil
	})
}

// Run opens NVML, then scans after every event and once a period, until ctx
// ends. An error means that the process should be restarted.
func (w *Watcher) Run(ctx context.Context) error {
	library, err := w.open(ctx)
	if err != nil {
		return err
	}
	period := cmp.Or(w.Period, DefaultPeriod)
	for failures := 0; ctx.Err() == nil; {
		if err := w.look(library); err == nil {
			failures = 0
		} else if errors.Is(err, ErrReplaced) {
			return err
		} else if failures++; failures >= failedScans {
			return fmt.Errorf("NVML fails again and again: %w", err)
		}
		for next := time.Now().Add(period); ctx.Err() == nil && time.Now().Before(next); {
			event := false
			w.listen(func() { event = library.WaitEvent(min(eventWait, period)) })
			if event {
				break
			}
		}
	}
	return nil
}

// Refresh looks at once, after a change of the caller: that is
// in the picture afterwards.
func (w *Watcher) Refresh() error {
	library, err := w.Library()
	if err != nil {
		return err
	}
	return w.look(library)
}

func (w *Watcher) look(library Library) error {
	w.looking.Lock()
	defer w.looking.Unlock()
	var snapshot Snapshot
	var err error
	w.listen(func() { snapshot, err = library.Scan() })
	if err != nil {
		w.publish(&state{library: library, snapshot: w.load().snapshot, scanned: w.load().scanned, err: err})
		return err
	}
	if w.Refine != nil {
		w.Refine(&snapshot)
	}
	w.publish(&state{library: library, snapshot: snapshot, scanned: true})
	return nil
}

// listen calls NVML, and says so while that takes too long: nothing is granted here then,
// and creations are refused before they hang in a call of NVML, for which the runtime would
// drop the plugin.
func (w *Watcher) listen(call func()) {
	var mu sync.Mutex
	over := false
	late := time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			silent := *w.load()
			silent.err = errSilent
			w.publish(&silent)
		}
	})
	call()
	late.Stop()
	mu.Lock()
	defer mu.Unlock()
	over = true
}

func (w *Watcher) open(ctx context.Context) (Library, error) {
	for pause := time.Second; ; pause = min(2*pause, openRetry) {
		library, err := w.Open()
		if err == nil {
			return library, nil
		}
		w.publish(&state{err: err})
		if errors.Is(err, ErrReplaced) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(pause):
		}
	}
}

func (w *Watcher) publish(next *state) {
	before := w.state.Swap(next)
	if before != nil && before.scanned == next.scanned && fmt.Sprint(before.err) == fmt.Sprint(next.err) &&
		reflect.DeepEqual(before.snapshot, next.snapshot) {
		return
	}
	if next.err != nil {
		w.Log.Error(next.err, "NVML does not work")
	} else {
		w.Log.Info("Devices changed", "gpus", len(next.snapshot.Devices), "usable", len(next.snapshot.Usable()), "unseen", len(next.snapshot.Unseen))
	}
	if w.Changed != nil {
		w.Changed()
	}
}
