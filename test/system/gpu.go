// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"path/filepath"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/simgpu"
)

const (
	// statePath is where a program in a container finds its node's GPUs.
	statePath = "/run/simgpu/state"
	// driverPath is where a node has its driver, as NVIDIA's driver container does.
	driverPath = "/run/nvidia/driver"
	// procPath is where NVIDIA's libraries look for MIG's device numbers, whatever
	// the driver's root is.
	procPath = "/proc/driver"
)

// GPUs are a node's simulated GPUs: the state file, which every container of the
// node has, as every process of a machine has the kernel; and a driver root with
// the libraries and device nodes, which only a CDI device gives to a container.
type GPUs struct {
	*simgpu.Sim
	DriverRoot string
	// MIG: the node has what instances of MIG need.
	MIG bool
}

// agentEnv lets the node agent use them, outside any container.
func (g *GPUs) agentEnv() []string {
	return []string{"SIMGPU_STATE=" + g.State, simgpu.DevRoot(g.DriverRoot)}
}

// simulate describes each node's GPUs to the cluster, which makes them with the
// node.
func (s *System) simulate(nodes []NodeOptions) []cluster.NodeConfig {
	var configs []cluster.NodeConfig
	for _, n := range nodes {
		gpus := &GPUs{MIG: n.MIG || n.GPUs.MIG}
		s.gpus, s.args = append(s.gpus, gpus), append(s.args, n.Args)
		own := map[string]string{driverPath: "driver", "/var/lib/vernier": "vernier"}
		if gpus.MIG {
			own[procPath] = "driver" + procPath
		}
		configs = append(configs, cluster.NodeConfig{
			Name:   n.Name,
			Mounts: []cluster.Mount{{Source: "gpu/state", Destination: statePath}},
			Own:    own,
			Prepare: func(dir string) (err error) {
				config := simgpu.Config{GPUs: append([]simgpu.GPU{n.GPUs}, n.More...), Driver: n.Driver, Seed: n.Name}
				if err := os.MkdirAll(filepath.Join(dir, "gpu"), 0o755); err != nil {
					return err
				}
				gpus.Sim, err = simgpu.Create(filepath.Join(s.bin, "simgpu"), filepath.Join(dir, "gpu", "state"), config)
				if err != nil {
					return err
				}
				gpus.DriverRoot = filepath.Join(dir, "driver")
				return gpus.Sim.DriverRoot(gpus.DriverRoot, gpus.MIG)
			},
		})
	}
	return configs
}
