// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/worker"
)

// prepareRetry is the pause after a failed preparation, as for a full disk.
const prepareRetry = 5 * time.Second

// preparer does what takes time for the containers of new slices, ahead of their
// creation. What it fails to do the creation does, or fails with the reason.
type preparer struct {
	index func() *ledger.Index
	modes mode.Set
	// settle brings what outlives containers in line with the ledger.
	settle func() error
	log    logr.Logger
	queue  worker.Queue[struct{}]
	done   map[ledger.Key][]ledger.Grant

	mu   sync.Mutex
	over []mode.Container
}

func newPreparer(index func() *ledger.Index, modes mode.Set, settle func() error, log logr.Logger) *preparer {
	return &preparer{index: index, modes: modes, settle: settle, log: log, queue: worker.NewQueue[struct{}](prepareRetry, prepareRetry), done: map[ledger.Key][]ledger.Grant{}}
}

// look asks for a comparison with the ledger. It never blocks.
func (p *preparer) look() { p.queue.Add(struct{}{}) }

// ended asks to make ready for the container's successor. It never blocks.
func (p *preparer) ended(c mode.Container) {
	p.mu.Lock()
	p.over = append(p.over, c)
	p.mu.Unlock()
	p.look()
}

func (p *preparer) run(ctx context.Context) error {
	return worker.Run(ctx, p.queue, func(struct{}) (time.Duration, error) {
		p.succeed()
		ready, err := p.prepare(), p.settle()
		if err != nil {
			p.log.Error(err, "Cannot bring the node in line with the ledger")
		} else if !ready {
			return prepareRetry, nil
		}
		return 0, err
	})
}

// succeed makes ready for the successors of containers that have ended. Where it
// fails, their creation does it.
func (p *preparer) succeed() {
	p.mu.Lock()
	over := p.over
	p.over = nil
	p.mu.Unlock()
	for _, c := range over {
		m, err := p.modes.For(c)
		if err == nil && len(p.index().Grants(ledger.Key{Pod: c.Pod, Container: c.Name})) > 0 {
			err = m.Ended(c)
		}
		if err != nil {
			p.log.Error(err, "Cannot make ready for the next container", "pod", c.Owner, "container", c.Name)
		}
	}
}

// prepare reports whether every container is prepared.
func (p *preparer) prepare() bool {
	index, ready := p.index(), true
	for key := range p.done {
		if index.Grants(key) == nil {
			delete(p.done, key)
		}
	}
	index.Each(func(key ledger.Key, grants []ledger.Grant) {
		if slices.Equal(p.done[key], grants) {
			return
		}
		owner, _ := index.Owner(key.Pod)
		c := mode.Container{Pod: key.Pod, Owner: owner, Name: key.Container, Grants: ledger.Initial(grants)}
		m, err := p.modes.For(c)
		if err == nil {
			err = m.Prepare(c)
		}
		if err != nil {
			p.log.Error(err, "Cannot prepare", "pod", owner, "container", key.Container)
			ready = false
			return
		}
		p.done[key] = grants
	})
	return ready
}
