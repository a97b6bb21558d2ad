// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"vernier.dev/vernier/test/cluster/image"
	"vernier.dev/vernier/test/must"
)

const (
	pauseImage = "vernier.local/pause:1"
	shellImage = "vernier.local/shell:1"
)

// config is containerd's, in folder %[1]s, with runc %[2]s. Names of NRI are its defaults.
const config = `version = 4
root = '%[1]s/root'
state = '%[1]s/state'
imports = []
[plugins.'io.containerd.server.v1.grpc']
  address = '%[1]s/containerd.sock'
[plugins.'io.containerd.server.v1.ttrpc']
  address = '%[1]s/ttrpc.sock'
[plugins.'io.containerd.shim.v1.manager']
  socket_dir = '%[1]s/s'
[plugins.'io.containerd.internal.v1.opt']
  path = '%[1]s/opt'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'native'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '` + pauseImage + `'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  cdi_spec_dirs = ['%[1]s/cdi']
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '%[2]s'
      Root = '%[1]s/runc'
[plugins.'io.containerd.nri.v1.nri']
  socket_path = '%[1]s/nri.sock'
  plugin_path = '%[1]s/nri-plugins'
  plugin_config_path = '%[1]s/nri-conf'
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = true
`

// containerd is one of its own, which ends with the test, spoken to as the kubelet does.
type containerd struct {
	cri.RuntimeServiceClient
	t   *testing.T
	dir string
}

func startContainerd(t *testing.T) *containerd {
	t.Helper()
	// Sockets have short paths.
	dir := must.Get(os.MkdirTemp("/run", "inside-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := os.Getenv("VERNIER_CONTAINERD")
	file := filepath.Join(dir, "config.toml")
	must.Do(t, os.WriteFile(file, fmt.Appendf(nil, config, dir, os.Getenv("VERNIER_RUNC")), 0o600))
	log := must.Get(os.Create(filepath.Join(dir, "log")))(t)
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, "containerd"), "--config", file)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("containerd:\n%s", text[max(0, len(text)-8000):])
		}
	})
	address := filepath.Join(dir, "containerd.sock")
	conn := must.Get(grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	c := &containerd{RuntimeServiceClient: cri.NewRuntimeServiceClient(conn), t: t, dir: dir}
	tick, late := time.NewTicker(200*time.Millisecond), time.After(2*time.Minute)
	defer tick.Stop()
	for {
		_, err := c.Version(t.Context(), &cri.VersionRequest{})
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("containerd does not answer: ", err)
		}
	}
	busybox := must.Get(exec.LookPath("busybox"))(t)
	c.load(filepath.Join(bin, "ctr"), pauseImage, "/pause", os.Getenv("VERNIER_PAUSE"))
	c.load(filepath.Join(bin, "ctr"), shellImage, "/busybox", busybox)
	return c
}

// load gives it an image with one program.
func (c *containerd) load(ctr, name, path, program string) {
	c.t.Helper()
	m := &image.Image{Name: name, Entrypoint: []string{path}}
	file := filepath.Join(c.dir, "image.tar")
	err := m.AddFile(path, program)
	if err == nil {
		err = m.Save(file)
	}
	must.Do(c.t, err)
	out, err := exec.Command(ctr, "--address", filepath.Join(c.dir, "containerd.sock"), "--namespace", "k8s.io", "images", "import", file).CombinedOutput()
	if err != nil {
		c.t.Fatalf("image %s: %v\n%s", name, err, out)
	}
}

// run starts a pod with one container, main, on the node's network.
func (c *containerd) run(name string, annotations map[string]string, script string, asked *cri.LinuxContainerResources) group {
	c.t.Helper()
	ctx := c.t.Context()
	pod := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "team", Uid: "uid-" + name}, Annotations: annotations,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/kubepods/burstable/poduid-" + name,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}},
		},
	}
	sandbox := must.Get(c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod}))(c.t)
	c.t.Cleanup(func() {
		ctx := context.Background()
		_, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox.PodSandboxId})
		if err == nil {
			_, err = c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId})
		}
		must.Report(c.t, err)
	})
	made, err := c.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: shellImage},
		Args:  []string{"sh", "-c", script},
		Linux: &cri.LinuxContainerConfig{Resources: asked},
	}})
	if err == nil {
		_, err = c.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	}
	must.Do(c.t, err)
	status := must.Get(c.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: made.ContainerId, Verbose: true}))(c.t)
	var info struct {
		PID uint32 `json:"pid"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || info.PID == 0 {
		c.t.Fatalf("containerd tells no process of the container: %v", err)
	}
	return groupOf(c.t, made.ContainerId, info.PID)
}
