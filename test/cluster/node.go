// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is one node: a network namespace and a mount namespace with a containerd
// and a kubelet of its own.
type Node struct {
	*Place
	// Containerd and Kubelet may be stopped, killed and started again; see also
	// RestartContainerd and RestartKubelet, which wait.
	Containerd *Process
	Kubelet    *Process

	config NodeConfig
	index  int
	c      *Cluster
}

// Dir holds what belongs to the node, on the machine's side.
func (n *Node) Dir() string { return filepath.Join(n.c.state.Dir, n.Name) }

// ContainerdSocket is where containerd serves CRI and its own API.
func (n *Node) ContainerdSocket() string { return filepath.Join(n.Dir(), "containerd.sock") }

// NRISocket is where containerd takes plugins; on the node that is
// /var/run/nri/nri.sock as well.
func (n *Node) NRISocket() string { return filepath.Join(n.Dir(), "nri", "nri.sock") }

// CDIDir is where containerd looks for CDI specs; on the node that is /var/run/cdi
// as well.
func (n *Node) CDIDir() string { return filepath.Join(n.Dir(), "cdi") }

// Cgroup is the group above those of all pods, relative to each hierarchy's top.
func (n *Node) Cgroup() string { return prefix + n.Name }

// shadowed are the sysctls that a kubelet sets, with the values that it wants.
// They are the whole machine's, so the node sees files of its own in their place,
// and the machine keeps what it has.
var shadowed = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// covered are the machine's folders in whose place every node has its own, because
// the kubelet or CNI cannot be told another, or pods look there.
var covered = map[string]string{
	"/var/run/cdi": "cdi",
	"/var/run/nri": "nri",
	// Before 2.3, containerd has no setting for where the sockets of its shims lie.
	"/run/containerd":  "run-containerd",
	"/var/lib/kubelet": "kubelet",
	"/var/lib/cni":     "cni-state",
	"/var/log":         "log",
}

// layOut makes the node's folders and configuration, and returns the script that
// arranges its mounts.
func (n *Node) layOut() (script string, err error) {
	for _, dir := range []string{"cdi", "certs", "cni", "nri-plugins", "nri-conf", "s", "volume-plugins"} {
		if err := os.MkdirAll(filepath.Join(n.Dir(), dir), 0o755); err != nil {
			return "", err
		}
	}
	if n.config.Prepare != nil {
		if err := n.config.Prepare(n.Dir()); err != nil {
			return "", err
		}
	}
	lines := []string{"mount --make-rshared /"}
	own := maps.Clone(covered)
	maps.Copy(own, n.config.Own)
	for target, dir := range own {
		source := filepath.Join(n.Dir(), dir)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return "", err
		}
		if err := n.c.state.makeDir(target); err != nil {
			return "", err
		}
		lines = append(lines, "mount --bind "+source+" "+target)
	}
	for name, value := range shadowed {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			continue // this kernel lacks it, and the kubelet will say so if it minds
		}
		source := filepath.Join(n.Dir(), "sysctl", name)
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(source, []byte(value+"\n"), 0o644); err != nil {
			return "", err
		}
		lines = append(lines, "mount --bind "+source+" "+target)
	}
	return strings.Join(lines, "\n"), n.configure()
}

// startContainerd returns when containerd answers and has the images.
func (n *Node) startContainerd(ctx context.Context) (err error) {
	n.Containerd, err = n.c.StartProcess(Command{
		Name: "containerd-" + n.Name, Place: n.Name, Mounts: true, Core: true,
		Argv: []string{n.c.tools.containerd, "--config", filepath.Join(n.Dir(), "containerd.toml")},
	})
	if err != nil {
		return err
	}
	if err := n.awaitContainerd(ctx); err != nil {
		return err
	}
	for _, name := range baseImages {
		if err := n.ImportImage(ctx, n.c.imageFile(name)); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) awaitContainerd(ctx context.Context) error {
	return n.Containerd.await(ctx, "containerd of "+n.Name, func(context.Context) error {
		conn, err := net.Dial("unix", n.ContainerdSocket())
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// startKubelet returns when the node is Ready.
func (n *Node) startKubelet(ctx context.Context) (err error) {
	argv := []string{
		n.c.tools.kubernetes("kubelet"), "--config=" + filepath.Join(n.Dir(), "kubelet.yaml"),
		"--kubeconfig=" + n.c.kubeconfigFile(n.Name), "--root-dir=/var/lib/kubelet",
		"--cert-dir=" + filepath.Join(n.Dir(), "certs"), "--hostname-override=" + n.Name, "--node-ip=" + n.IP,
	}
	if len(n.config.Labels) > 0 {
		argv = append(argv, "--node-labels="+joinLabels(n.config.Labels))
	}
	n.Kubelet, err = n.c.StartProcess(Command{Name: "kubelet-" + n.Name, Place: n.Name, Mounts: true, Core: true, Argv: argv})
	if err != nil {
		return err
	}
	return n.Kubelet.await(ctx, "node "+n.Name+" Ready", n.ready)
}

func (n *Node) ready(ctx context.Context) error {
	node, err := n.c.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
	return fmt.Errorf("no condition yet")
}

// RestartKubelet stops the kubelet, starts it and waits until it is healthy.
// Containers go on meanwhile.
func (n *Node) RestartKubelet(ctx context.Context) error {
	if err := n.Kubelet.Restart(ctx); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}
	return n.Kubelet.await(ctx, "kubelet of "+n.Name, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/healthz: %s", resp.Status)
		}
		return nil
	})
}

// RestartContainerd stops containerd, starts it and waits until it answers.
// Containers go on meanwhile: their shims are processes of their own.
func (n *Node) RestartContainerd(ctx context.Context) error {
	if err := n.Containerd.Restart(ctx); err != nil {
		return err
	}
	return n.awaitContainerd(ctx)
}

// ImportImage loads a docker-archive, as test/cluster/image writes it, or an OCI
// archive. No pod of the node can pull another.
func (n *Node) ImportImage(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, n.c.tools.ctr, "--address", n.ContainerdSocket(), "--namespace", "k8s.io",
		"images", "import", "--all-platforms", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("node %s: importing %s: %w: %s", n.Name, file, err, strings.TrimSpace(string(out)))
	}
	return nil
}
