// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"vernier.dev/vernier/test/cluster/machine"
)

// downTimeout bounds the removal: a process that SIGKILL does not end in this
// time hangs in the kernel.
const downTimeout = time.Minute

// partGrace is what the programs that others started in the cluster have to end
// by themselves, before everything is killed.
const partGrace = 3 * time.Second

type downResult struct {
	done chan struct{}
	err  error
}

// Down stops everything that the cluster started and puts the machine back. It
// may be called again, and by several at once: all wait and get the same answer.
func (c *Cluster) Down() error {
	if c.lock == nil {
		return errors.New("this process has only attached itself to the cluster: use Remove, or `vernier-cluster down`")
	}
	c.mu.Lock()
	if r := c.down; r != nil {
		c.mu.Unlock()
		<-r.done
		return r.err
	}
	r := &downResult{done: make(chan struct{})}
	c.down = r
	c.mu.Unlock()
	defer close(r.done)
	defer c.lock.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	c.stopParts(ctx)
	if c.group != nil {
		c.group.Close()
	}
	r.err = remove(ctx, c.hierarchies, c.state)
	return r.err
}

// stopParts lets what is not the cluster's own end first, in the order of a
// shutdown: its last words are in its log.
func (c *Cluster) stopParts(ctx context.Context) {
	c.mu.Lock()
	var parts []*record
	for _, r := range c.state.Processes {
		if !r.Command.Core && r.Process.PID != 0 {
			parts = append(parts, r)
		}
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, r := range parts {
		wg.Go(func() { _ = r.Process.Stop(ctx, partGrace) })
	}
	wg.Wait()
}

// remove takes away whatever of a cluster is on the machine. Everything it does
// may have been done before.
func remove(ctx context.Context, h machine.Hierarchies, s *state) error {
	// First the kubelets and containerds, which would start things again, and with
	// them the namespaces and all mounts; then the nodes' containers, where they
	// have a group of their own.
	groups := h.Leftovers(prefix)
	if i := slices.Index(groups, systemGroup); i > 0 {
		groups = slices.Insert(slices.Delete(groups, i, i+1), 0, systemGroup)
	}
	if err := h.KillGroups(ctx, groups...); err != nil {
		return err // with processes left, nothing below would hold
	}
	var all error
	h.Disable(s.Controllers)
	if s.Dir != "" {
		all = errors.Join(all, os.RemoveAll(s.Dir))
	}
	for _, dir := range slices.Backward(s.Created) {
		// Another program may have put something there by now: then it stays.
		if entries, err := os.ReadDir(dir); err == nil && len(entries) == 0 {
			all = errors.Join(all, os.Remove(dir))
		}
	}
	if all == nil {
		if err := os.Remove(stateFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = err
		}
	}
	return all
}

// removeLeftovers removes what a harness that was killed left behind.
func removeLeftovers(ctx context.Context, cfg Config) error {
	s, err := loadState()
	if err != nil {
		return err
	}
	if s != nil && s.Kept {
		return fmt.Errorf("a cluster was left up on purpose, in %s: use it, or stop it with `vernier-cluster down`", s.Dir)
	}
	h, err := machine.FindHierarchies()
	if err != nil {
		return err
	}
	if s == nil {
		// The record does not survive a boot where /run is memory; the folder does.
		s = &state{Dir: DefaultDir}
		if _, err := os.Stat(s.Dir); err != nil && len(h.Leftovers(prefix)) == 0 {
			return nil
		}
	}
	fmt.Fprintln(cfg.Progress, "removing what an earlier cluster left on this machine")
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	return remove(ctx, h, s)
}

// Remove takes down the cluster that another process started and kept, and what
// a killed one left. It is an error while a living process has a cluster.
func Remove(ctx context.Context) error {
	if err := os.MkdirAll(recordDir, 0o755); err != nil {
		return fmt.Errorf("%w: run as root", err)
	}
	lock, holder, err := machine.TryLock(lockFile)
	if err != nil {
		return err
	}
	if lock == nil {
		return fmt.Errorf("the cluster belongs to %s, which still runs: stop that", holder)
	}
	defer lock.Unlock()
	s, err := loadState()
	if err != nil {
		return err
	}
	h, err := machine.FindHierarchies()
	if err != nil {
		return err
	}
	if s == nil {
		s = &state{Dir: DefaultDir}
	}
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	(&Cluster{state: s}).stopParts(ctx)
	return remove(ctx, h, s)
}
