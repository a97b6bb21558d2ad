// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/tide"
)

const (
	// tideLook is how often it is looked whether the window of the node's tide is over.
	tideLook = time.Second
	// reasonTideClock is that of the event on the ledger when idle slices get no turns since the time is not known.
	reasonTideClock = "TideClock"
)

// tides ends the idle slices of the node with their window. It keeps nothing: what is to be follows
// from the ledger and the clock.
type tides struct {
	index func() *ledger.Index
	read  func() servertime.Reading
	// shut gives the idle slices of these pods no turns, and those of all others theirs. look has the
	// releaser look at a pod. tell is for people.
	shut func(map[types.UID]bool)
	look func(types.UID)
	tell func(text string)

	over atomic.Pointer[map[types.UID]bool]
	// told is what was told last; run's alone.
	told string
}

// isOver reports whether the pod's idle slice is to be ended.
func (t *tides) isOver(pod types.UID) bool {
	over := t.over.Load()
	return over != nil && (*over)[pod]
}

func (t *tides) run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { t.once() }, tideLook)
	return nil
}

// once looks once.
func (t *tides) once() {
	index, now := t.index(), t.read()
	shut, end := tide.Decide(index.Tide, index.Idle, now)
	t.shut(pods(shut))
	over := pods(end)
	t.over.Store(&over)
	for pod := range over {
		t.look(pod)
	}
	text := ""
	if err := now.Err(); err != nil && index.Tide != nil && len(index.Idle) > 0 {
		text = "idle slices get no compute beyond what their tide lends outside of its windows: " + err.Error()
	}
	if text != "" && t.told == "" {
		t.tell(text)
	}
	t.told = text
}

func pods(on []tide.On) map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, s := range on {
		all[s.Pod] = true
	}
	return all
}
