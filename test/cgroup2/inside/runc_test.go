// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"vernier.dev/vernier/test/must"
)

// container is one of runc, with the resources that it was last given.
type container struct {
	group
	resources *rspec.LinuxResources
}

func runc(t *testing.T, stdin []byte, args ...string) error {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command(os.Getenv("VERNIER_RUNC"), append([]string{"--root", "/run/vernier-inside", "--log", log}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("runc %s: %w\n%s", args[0], err, text)
	}
	return nil
}

// start runs a script in a container as the runtime makes one: with the resources that
// the kubelet asks for, and what a plugin adjusts of them.
func start(t *testing.T, id, script string, asked *api.LinuxResources, adjust *api.ContainerAdjustment) *container {
	t.Helper()
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	busybox := must.Get(exec.LookPath("busybox"))(t)
	program, err := os.ReadFile(busybox)
	if err == nil {
		err = os.MkdirAll(root, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "busybox"), program, 0o755)
	}
	must.Do(t, err)
	c := &container{resources: merged(asked, adjust.GetLinux().GetResources()).ToOCI()}
	spec := rspec.Spec{
		Version: rspec.Version,
		Root:    &rspec.Root{Path: root},
		Process: &rspec.Process{Args: []string{"/busybox", "sh", "-c", script}, Cwd: "/"},
		Mounts: []rspec.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &rspec.Linux{
			CgroupsPath: "/kubepods/burstable/pod" + t.Name() + "/" + id, Resources: c.resources,
			Namespaces: []rspec.LinuxNamespace{{Type: rspec.PIDNamespace}, {Type: rspec.MountNamespace}, {Type: rspec.CgroupNamespace}},
		},
	}
	if score := adjust.GetLinux().GetOomScoreAdj(); score != nil {
		n := int(score.GetValue())
		spec.Process.OOMScoreAdj = &n
	}
	text, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)
	}
	pid := filepath.Join(bundle, "pid")
	if err == nil {
		err = runc(t, nil, "run", "--detach", "--bundle", bundle, "--pid-file", pid, id)
	}
	must.Do(t, err)
	t.Cleanup(func() { must.Report(t, runc(t, nil, "delete", "--force", id)) })
	number := must.Get(os.ReadFile(pid))(t)
	n := must.Get(strconv.ParseUint(string(number), 10, 32))(t)
	c.group = groupOf(t, id, uint32(n))
	if want := "/sys/fs/cgroup" + spec.Linux.CgroupsPath; c.dir != want {
		t.Errorf("its directory is %s, want %s", c.dir, want)
	}
	return c
}

// merged is what is asked for, and above it what a plugin says, as NRI puts them together.
func merged(asked, said *api.LinuxResources) *api.LinuxResources {
	all := &api.LinuxResources{Cpu: &api.LinuxCPU{}, Memory: &api.LinuxMemory{}, Unified: map[string]string{}}
	for _, r := range []*api.LinuxResources{asked, said} {
		if v := r.GetCpu().GetShares(); v != nil {
			all.Cpu.Shares = v
		}
		if v := r.GetCpu().GetQuota(); v != nil {
			all.Cpu.Quota = v
		}
		if v := r.GetCpu().GetPeriod(); v != nil {
			all.Cpu.Period = v
		}
		if v := r.GetMemory().GetLimit(); v != nil {
			all.Memory.Limit = v
		}
		for name, v := range r.GetUnified() {
			all.Unified[name] = v
		}
	}
	return all
}

// update has runc change the container to what is said.
func (c *container) update(said *api.LinuxResources) error {
	c.resources = merged(api.FromOCILinuxResources(c.resources, nil), said).ToOCI()
	text, err := json.Marshal(c.resources)
	if err != nil {
		return err
	}
	return runc(c.t, text, "update", "--resources", "-", c.id)
}
