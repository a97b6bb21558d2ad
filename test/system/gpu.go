// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vernier.dev/vernier/nri-plugin/cdi"
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
	// stateFolder is where the chart has the node agent keep its state.
	stateFolder = "/var/lib/vernier"
)

// GPUs are a node's. Of simulated ones every container of the node has the state file, as
// every process of a machine has the kernel; libraries and device nodes lie below the
// driver's root, and only a CDI device gives them to a container.
type GPUs struct {
	// Sim is nil where the GPUs are the machine's.
	*simgpu.Sim
	DriverRoot string
	// DevRoot has the folder dev with the device nodes.
	DevRoot string
	// MIG: the node has what instances of MIG need.
	MIG bool
}

// Env lets a program use them outside any container.
func (g *GPUs) Env() []string {
	if g.Sim == nil {
		return nil
	}
	return []string{"SIMGPU_STATE=" + g.State, simgpu.DevRoot(g.DevRoot)}
}

// driverRoots are where the machine's driver is looked for: on the machine itself, in
// NVIDIA's driver container, and where some clouds mount it.
var driverRoots = []string{"/", "/run/nvidia/driver", "/usr/local/nvidia"}

// FindDriver returns the root of the files of this machine's NVIDIA driver.
func FindDriver() (root string, err error) {
	for _, root := range driverRoots {
		if _, err := os.Stat(root); err != nil || cdi.FindNVML(root) == "" {
			continue
		}
		for _, node := range []string{"nvidiactl", "nvidia0", "nvidia-uvm"} {
			if _, err := os.Stat(filepath.Join("/dev", node)); err != nil {
				return "", fmt.Errorf("the driver is below %s, and there is no GPU: %w: run nvidia-smi as root, or nvidia-modprobe -u -c 0", root, err)
			}
		}
		return root, nil
	}
	return "", fmt.Errorf("this machine has no NVIDIA driver: libnvidia-ml.so.1 is below none of %s: install the driver, mount it there, or have the loader find it (ldconfig FOLDER)", strings.Join(driverRoots, ", "))
}

// simulate describes each node's GPUs to the cluster, which makes them with the
// node.
func (s *System) simulate(nodes []NodeOptions) []cluster.NodeConfig {
	var configs []cluster.NodeConfig
	for _, n := range nodes {
		gpus := &GPUs{MIG: n.MIG || n.GPUs.MIG}
		s.gpus, s.args = append(s.gpus, gpus), append(s.args, n.Args)
		if n.DriverRoot != "" {
			gpus.DriverRoot, gpus.DevRoot = n.DriverRoot, "/"
			configs = append(configs, cluster.NodeConfig{Name: n.Name, Own: map[string]string{stateFolder: "vernier"}})
			continue
		}
		own := map[string]string{driverPath: "driver", stateFolder: "vernier"}
		if gpus.MIG {
			own[procPath] = "driver" + procPath
		}
		configs = append(configs, cluster.NodeConfig{
			Name:   n.Name,
			Mounts: []cluster.Mount{{Source: "gpu/state", Destination: statePath}},
			Own:    own,
			Prepare: func(dir string) (err error) {
				config := simgpu.Config{GPUs: append([]simgpu.GPU{n.GPUs}, n.More...), Driver: n.Driver, Seed: n.Name,
					Profile: os.Getenv("SIMGPU_PROFILE")}
				if err := os.MkdirAll(filepath.Join(dir, "gpu"), 0o755); err != nil {
					return err
				}
				gpus.Sim, err = simgpu.Create(filepath.Join(s.bin, "simgpu"), filepath.Join(dir, "gpu", "state"), config)
				if err != nil {
					return err
				}
				gpus.DriverRoot = filepath.Join(dir, "driver")
				gpus.DevRoot = gpus.DriverRoot
				return gpus.Sim.DriverRoot(gpus.DriverRoot, gpus.MIG)
			},
		})
	}
	return configs
}
