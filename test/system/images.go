// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/cluster/image"
)

// DemoImage has the CUDA demo program and busybox, and neither a driver nor a GPU
// library: those come with a slice. It has the variables of a CUDA base image, which ask
// NVIDIA's runtimes for all devices.
const DemoImage = "vernier.local/cudademo:1"

// PreloadImage is the same with an /etc/ld.so.preload of its own, which names
// PreloadLibrary, and with variables that lead to a device and an MPS server of its own.
const (
	PreloadImage   = "vernier.local/cudademo-preload:1"
	PreloadLibrary = "/opt/own/libown.so"
)

// images puts the test images on every node.
func (s *System) images(ctx context.Context) error {
	for _, name := range []string{DemoImage, PreloadImage} {
		m, err := cluster.Busybox(name)
		if err != nil {
			return err
		}
		m.Env = append(m.Env, v1alpha1.EnvVisibleDevices+"=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_REQUIRE_CUDA=cuda>=12.4")
		if err := m.AddProgram("/bin/cudademo", filepath.Join(s.bin, "simgpu", "cudademo")); err != nil {
			return err
		}
		if err := m.AddProgram("/bin/passfd", filepath.Join(s.bin, "simgpu", "passfd")); err != nil {
			return err
		}
		if err := m.AddCLibrary(); err != nil {
			return err
		}
		if err := addOwnLoader(m); err != nil {
			return err
		}
		if name == PreloadImage {
			m.Env = append(m.Env, "CUDA_MPS_PIPE_DIRECTORY=/image", v1alpha1.EnvCUDADevices+"=7")
			// Any library does: that it is loaded is all that is looked at.
			library, err := image.Library("libutil.so.1")
			if err == nil {
				err = m.AddFile(PreloadLibrary, library)
			}
			if err != nil {
				return err
			}
			m.Add("/etc/ld.so.preload", 0o644, []byte("# the image's\n"+PreloadLibrary+"\n"))
		}
		if err := s.AddImage(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// AddImage puts an image on every node.
func (s *System) AddImage(ctx context.Context, m *image.Image) error {
	file := filepath.Join(s.Cluster.Dir(), "image.tar")
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

// OwnLoader is a program in the image that starts others as the dynamic loader
// does, and reads no /etc/ld.so.preload: what a tenant who gets around the limiter
// would bring along.
const OwnLoader = "/bin/own-loader"

func addOwnLoader(m *image.Image) error {
	const loader, preload, other = "/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.preload", "/etc/ld.so.nothing"
	program, err := os.ReadFile(loader)
	if err != nil {
		return err
	}
	if !bytes.Contains(program, []byte(preload)) {
		return fmt.Errorf("%s does not name %s", loader, preload)
	}
	m.Add(OwnLoader, 0o755, bytes.ReplaceAll(program, []byte(preload), []byte(other)))
	return nil
}
