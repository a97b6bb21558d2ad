// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"io"
	"os"
	"os/exec"
)

// Path is the PATH of a person at the cluster: kubectl and its vernier plugin.
func (s *System) Path() string { return s.bin + ":" + s.Cluster.BinPath() }

// Kubectl runs kubectl as that person would, and writes what it prints to out.
func (s *System) Kubectl(ctx context.Context, out io.Writer, args ...string) error {
	// env looks the program up in the PATH that it is given.
	argv := append([]string{"PATH=" + s.Path() + ":" + os.Getenv("PATH"), "KUBECONFIG=" + s.Cluster.Kubeconfig(), "kubectl"}, args...)
	cmd := exec.CommandContext(ctx, "env", argv...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}
