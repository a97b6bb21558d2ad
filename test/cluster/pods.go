// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Kubectl is a command of the kubectl that belongs to the cluster's version,
// with the administrator's credentials.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.tools.kubernetes("kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// Exec runs a command in a container of a pod and returns its standard output.
// An error has its standard error. Container may be empty in a pod that has one.
func (c *Cluster) Exec(ctx context.Context, namespace, pod, container string, argv ...string) (string, error) {
	args := []string{"exec", "--namespace=" + namespace, pod}
	if container != "" {
		args = append(args, "--container="+container)
	}
	cmd := c.Kubectl(ctx, append(append(args, "--"), argv...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s in pod %s/%s: %w: %s", strings.Join(argv, " "), namespace, pod, err, strings.TrimSpace(problems.String()))
	}
	return string(out), nil
}

// Logs returns what a container of a pod has written so far.
func (c *Cluster) Logs(ctx context.Context, namespace, pod, container string) (string, error) {
	data, err := c.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("log of pod %s/%s: %w", namespace, pod, err)
	}
	return string(data), nil
}
