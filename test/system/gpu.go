// SPDX-License-Identifier: Apache-2.0

package system

import (
	"path/filepath"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/simgpu"
)

// statePath is where a program in a container finds its node's GPUs.
const statePath = "/run/simgpu/state"

// GPUs are a node's simulated GPUs: the state file, which every container of the
// node has, as every process of a machine has the kernel; and a driver root with
// the libraries and device nodes, which only a CDI device gives to a container.
type GPUs struct {
	State      string
	DriverRoot string
}

// Env lets a process outside containers use them.
func (g *GPUs) Env() []string { return []string{"SIMGPU_STATE=" + g.State, "SIMGPU_ALL_DEVICES=1"} }

// simulate describes each node's GPUs to the cluster, which makes them with the
// node.
func (s *System) simulate(nodes []NodeOptions) []cluster.NodeConfig {
	var configs []cluster.NodeConfig
	for _, n := range nodes {
		gpus := &GPUs{}
		s.gpus = append(s.gpus, gpus)
		configs = append(configs, cluster.NodeConfig{
			Name:   n.Name,
			Mounts: []cluster.Mount{{Source: "gpu/state", Destination: statePath}},
			Prepare: func(dir string) error {
				gpus.State, gpus.DriverRoot = filepath.Join(dir, "gpu", "state"), filepath.Join(dir, "driver")
				if err := simgpu.Create(gpus.State, simgpu.Config{GPUs: n.GPUs, Driver: n.Driver, Seed: n.Name}); err != nil {
					return err
				}
				return simgpu.DriverRoot(gpus.State, gpus.DriverRoot)
			},
		})
	}
	return configs
}
