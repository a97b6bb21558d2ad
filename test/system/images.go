// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"path/filepath"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
)

// DemoImage has the CUDA demo program and busybox, and neither a driver nor a GPU
// library: those come with a slice. Like every CUDA base image it asks NVIDIA's
// runtimes for all devices.
const DemoImage = "vernier.local/cudademo:1"

// images puts the test image on every node.
func (s *System) images(ctx context.Context) error {
	m, err := cluster.Busybox(DemoImage)
	if err != nil {
		return err
	}
	m.Env = append(m.Env, v1alpha1.EnvVisibleDevices+"=all")
	if err := m.AddProgram("/bin/cudademo", filepath.Join(s.bin, "simgpu", "cudademo")); err != nil {
		return err
	}
	file := filepath.Join(s.Cluster.Dir(), "cudademo.tar")
	if err := m.Save(file); err != nil {
		return err
	}
	for _, n := range s.Cluster.Nodes {
		if err := n.ImportImage(ctx, file); err != nil {
			return err
		}
	}
	return nil
}
