// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package throughput measures how many pods a second get from created to bound with
// Vernier, beside the same pods without it and beside pods that ask for a plain
// extended resource, in turn and on the same cluster: a real control plane, 1,000
// nodes that kwok keeps Ready, each with the ledger of 8 GPUs.
//
// It plays the nodes' agents, of which there are none, and it judges no figure.
package throughput

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/cluster/tools"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

var (
	sys *system.System
	// kube speaks protobuf: what the benchmark itself costs, it takes from the two
	// cores of what it measures.
	kube kubernetes.Interface
)

func TestMain(m *testing.M) {
	os.Exit(system.Main(m, system.Options{Name: "throughput",
		Nodes: []system.NodeOptions{{Name: "real", GPUs: simgpu.GPU{Model: simgpu.A100}}}}, makeReady))
}

func makeReady(ctx context.Context, s *system.System) error {
	sys = s
	cfg := rest.CopyConfig(sys.Cluster.REST)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	var err error
	if kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if err := startKwok(ctx); err != nil {
		return err
	}
	// The one real node is there for Vernier to be installed on.
	if err := sys.Kubectl(ctx, os.Stderr, "cordon", "real"); err != nil {
		return err
	}
	spaces := map[string]bool{}
	for _, a := range arms {
		spaces[string(a)] = a == withVernier
	}
	if err := sys.Namespaces(ctx, spaces); err != nil {
		return err
	}
	return makeNodes(ctx)
}

// startKwok runs kwok in the control plane's place, with the rights that it needs.
func startKwok(ctx context.Context) error {
	dirs, err := tools.Ensure(ctx, os.Stderr, tools.Kwok)
	if err != nil {
		return err
	}
	stages, err := filepath.Abs("kwok.yaml")
	if err != nil {
		return err
	}
	const space, name = metav1.NamespaceSystem, "kwok"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := sys.Kube.CoreV1().ServiceAccounts(space).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: space, Name: name}},
	}
	if _, err := sys.Kube.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	kubeconfig, err := sys.Cluster.ServiceAccountKubeconfig(ctx, space, name)
	if err != nil {
		return err
	}
	_, err = sys.Cluster.StartProcess(cluster.Command{Name: name, Argv: []string{
		filepath.Join(dirs[0], "kwok"), "--kubeconfig=" + kubeconfig, "--config=" + stages,
		"--manage-nodes-with-label-selector=" + kwokLabel + "=true",
		// The control plane gives a node up 50 s after its last sign of life.
		"--node-lease-duration-seconds=120",
	}})
	return err
}
