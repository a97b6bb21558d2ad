// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/test/manifests"
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

// Shell runs what that person types in the repository's folder, helm at hand as
// well, and returns what it prints.
func (s *System) Shell(ctx context.Context, script string) (string, error) {
	root, err := manifests.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Cluster.Kubeconfig(),
		"PATH="+s.Path()+":"+filepath.Join(root, "deploy", "tools")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", script, err)
	}
	return string(out), err
}

// Events are what was said of the objects that the field selector names, each as
// "Reason: message". What keeps them from being read takes their place.
func (s *System) Events(ctx context.Context, namespace, selector string) []string {
	list, err := s.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}
