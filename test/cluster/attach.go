// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"io"

	"vernier.dev/vernier/test/cluster/machine"
)

// ErrNoCluster says that the machine has no cluster.
var ErrNoCluster = errors.New("there is no cluster on this machine: start one with `vernier-cluster up`")

// Attach returns the cluster that another process started, running or kept. The
// caller may use it and start processes in it; taking it down is Remove's.
func Attach(ctx context.Context) (*Cluster, error) {
	s, err := loadState()
	if err != nil {
		return nil, err
	}
	if s == nil || s.Address == "" {
		return nil, ErrNoCluster
	}
	c := &Cluster{state: s, progress: io.Discard, processes: map[string]*Process{}}
	if c.hierarchies, err = machine.FindHierarchies(); err != nil {
		return nil, err
	}
	if c.tools, err = findBinaries(ctx, io.Discard); err != nil {
		return nil, err
	}
	for _, r := range s.Processes {
		c.processes[r.Command.Name] = &Process{Command: r.Command, Log: c.logFile(r.Command.Name), c: c, record: r}
	}
	c.ControlPlane = c.Place(controlPlane)
	for i, config := range s.Nodes {
		c.Nodes = append(c.Nodes, &Node{
			Place: c.Place(config.Name), config: config, index: i, c: c,
			Containerd: c.processes["containerd-"+config.Name], Kubelet: c.processes["kubelet-"+config.Name],
		})
	}
	if err := c.openGroup(); err != nil {
		return nil, err
	}
	return c, c.connect()
}
