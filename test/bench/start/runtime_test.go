// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// container is what a variant asks of the runtime, in a sandbox of its own.
type container struct {
	runtime cri.RuntimeServiceClient
	sandbox string
	pod     *cri.PodSandboxConfig
	config  *cri.ContainerConfig
}

// gpu asks for a device by its CDI name, past any agent.
func (c *container) gpu(name string) { c.config.CDIDevices = []*cri.CDIDevice{{Name: name}} }

// start creates and starts the container and tells how long the runtime took.
func (c *container) start(ctx context.Context) (id string, took time.Duration, err error) {
	begun := time.Now()
	created, err := c.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: c.sandbox, Config: c.config, SandboxConfig: c.pod,
	})
	if err != nil {
		return "", 0, err
	}
	_, err = c.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
	return created.ContainerId, time.Since(begun), err
}

// remove ends the container and returns when the runtime has forgotten it.
func (c *container) remove(ctx context.Context, id string) error {
	if _, err := c.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	_, err := c.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	return err
}

// once starts the container and removes it.
func (c *container) once(ctx context.Context) (time.Duration, error) {
	id, took, err := c.start(ctx)
	if err != nil {
		return 0, err
	}
	return took, c.remove(ctx, id)
}

// spec is the part of an OCI spec by which the variants differ.
type spec struct {
	Process struct {
		Env []string `json:"env"`
	} `json:"process"`
	Mounts []struct {
		Destination string `json:"destination"`
	} `json:"mounts"`
	Linux struct {
		Devices []struct {
			Path string `json:"path"`
		} `json:"devices"`
	} `json:"linux"`
}

// inspect starts the container, reads what the runtime made of it, and removes it.
func (c *container) inspect(ctx context.Context) (*spec, error) {
	id, _, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	status, err := c.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	var info struct {
		Spec *spec `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || info.Spec == nil {
		return nil, fmt.Errorf("containerd tells no spec of the container: %v", err)
	}
	return info.Spec, c.remove(ctx, id)
}

func connect(b *testing.B, n *system.Node) cri.RuntimeServiceClient {
	b.Helper()
	conn := must.Get(grpc.NewClient("unix://"+n.ContainerdSocket(), grpc.WithTransportCredentials(insecure.NewCredentials())))(b)
	b.Cleanup(func() { conn.Close() })
	return cri.NewRuntimeServiceClient(conn)
}

// newContainer runs a pod's sandbox, which ends with the benchmark, and describes
// its one container as a kubelet does that was asked for little.
func newContainer(b *testing.B, n *system.Node, runtime cri.RuntimeServiceClient, pod *cri.PodSandboxConfig) *container {
	b.Helper()
	pod.Hostname = pod.Metadata.Name
	pod.Linux = &cri.LinuxPodSandboxConfig{CgroupParent: "/" + n.Cgroup()}
	made, err := runtime.RunPodSandbox(b.Context(), &cri.RunPodSandboxRequest{Config: pod})
	if err != nil {
		b.Fatalf("sandbox %s on %s: %v", pod.Metadata.Name, n.Name, err)
	}
	b.Cleanup(func() {
		ctx := context.Background()
		if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: made.PodSandboxId}); err != nil {
			b.Error(err)
		}
		if _, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: made.PodSandboxId}); err != nil {
			b.Error(err)
		}
	})
	return &container{runtime: runtime, sandbox: made.PodSandboxId, pod: pod, config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: containerName},
		Image:    &cri.ImageSpec{Image: system.DemoImage},
		Command:  []string{"/bin/sleep", "1000"},
		Linux:    &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpuShares: 102}},
	}}
}
