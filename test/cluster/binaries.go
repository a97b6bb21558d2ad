// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"vernier.dev/vernier/test/cluster/tools"
)

// binaries are the programs of a cluster, by absolute path.
type binaries struct {
	etcd, runc, ctr, containerd, pause, forward string
	cni, kubernetesDir, containerdDir           string
}

func (b *binaries) kubernetes(name string) string { return filepath.Join(b.kubernetesDir, name) }

// BinPath holds kubectl and ctr of the cluster's versions, in the form of PATH.
func (c *Cluster) BinPath() string { return c.tools.kubernetesDir + ":" + c.tools.containerdDir }

// path is what the cluster's processes get: containerd finds its shim there.
func (b *binaries) path() string { return b.containerdDir + ":" + os.Getenv("PATH") }

// containerdConfigVersion is the newest version of a configuration that containerd reads.
func (b *binaries) containerdConfigVersion() (version int, err error) {
	out, err := exec.Command(b.containerd, "config", "default").Output()
	if err != nil {
		return 0, fmt.Errorf("containerd's default configuration: %w", err)
	}
	if _, err := fmt.Sscanf(string(out), "version = %d", &version); err != nil {
		return 0, fmt.Errorf("the version of containerd's default configuration: %w", err)
	}
	return version, nil
}

func findBinaries(ctx context.Context, progress io.Writer) (*binaries, error) {
	dirs, err := tools.Ensure(ctx, progress, tools.Etcd, tools.CNI, tools.Own, tools.Runc, tools.Containerd, tools.Kubernetes)
	if err != nil {
		return nil, err
	}
	return &binaries{
		etcd: filepath.Join(dirs[0], "etcd"), cni: dirs[1],
		pause: filepath.Join(dirs[2], "pause"), forward: filepath.Join(dirs[2], "forward"),
		runc:       filepath.Join(dirs[3], "runc"),
		containerd: filepath.Join(dirs[4], "containerd"), ctr: filepath.Join(dirs[4], "ctr"), containerdDir: dirs[4],
		kubernetesDir: dirs[5],
	}, nil
}

// EnvtestAssets returns a folder with etcd, kube-apiserver and kubectl, for
// KUBEBUILDER_ASSETS, and builds what the cache lacks.
func EnvtestAssets(ctx context.Context, progress io.Writer) (string, error) {
	return tools.Assets(ctx, progress)
}
