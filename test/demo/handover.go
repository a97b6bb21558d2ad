// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/system"
)

// viewer is who looks at the page.
const viewer = "viewer"

// end begins the last line, after which nothing else of the text works.
const end = "bin/vernier-cluster down"

var pasted = template.Must(template.New("").Parse(`
export KUBECONFIG={{.Kubeconfig}} PATH={{.Path}}:$PATH
kubectl config set-context --current --namespace=` + namespace + `
kubectl vernier

# a pod; more of them are in docs/examples
kubectl apply -f - <<'END'
{{.Pod}}END
kubectl wait --for=condition=Ready pod/share --timeout=2m
kubectl logs share

# the page is http://{{.Page}}, and this prints a token for it
kubectl create token ` + viewer + `

# room for the larger examples
kubectl delete pods --all

` + end + `     # ends it
`))

// handOver makes what a person at the cluster needs, and returns what to paste in a shell.
func handOver(ctx context.Context, sys *system.System) (string, error) {
	root, err := manifests.Root()
	if err != nil {
		return "", err
	}
	pod, err := os.ReadFile(filepath.Join(root, "docs/examples/share/pod.yaml"))
	if err != nil {
		return "", err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: viewer}}
	if _, err := sys.Kube.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	// The second shows what containers use.
	for _, role := range []string{"vernier-viewer", "vernier-metrics-reader"} {
		_, err = sys.Kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: viewer + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: viewer}},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
	}
	page, err := sys.Cluster.Forward("forward-page", net.JoinHostPort(sys.Allocators[0].Place.IP, "8082"))
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = pasted.Execute(&text, map[string]string{
		"Kubeconfig": sys.Cluster.Kubeconfig(), "Path": sys.Path(), "Pod": string(pod), "Page": page,
	})
	return text.String(), err
}
