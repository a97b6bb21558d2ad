// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"vernier.dev/vernier/test/cluster/pki"
)

const inside = "https://" + controlPlaneIP

// writeCredentials makes every key, certificate and kubeconfig of the cluster's
// own parts, and the administrator's.
func (c *Cluster) writeCredentials() error {
	for _, dir := range []string{c.pkiDir(), filepath.Dir(c.Kubeconfig())} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	ca, err := pki.NewAuthority("vernier-cluster")
	if err != nil {
		return err
	}
	sa, err := pki.NewSigningKey()
	if err != nil {
		return err
	}
	pairs := map[string]pki.Pair{"ca": ca.Pair, "sa": sa}
	issue := func(file, user string, groups []string, names ...string) {
		if err == nil {
			pairs[file], err = ca.Issue(user, groups, names...)
		}
	}
	issue("apiserver", "kube-apiserver", nil, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "127.0.0.1", controlPlaneIP, serviceIP)
	issue("kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"})
	issue("front-proxy-client", "front-proxy-client", nil)
	issue("kube-controller-manager", "system:kube-controller-manager", nil)
	issue("kube-scheduler", "system:kube-scheduler", nil)
	issue("admin", "admin", []string{"system:masters"})
	for i, n := range c.state.Nodes {
		issue(n.Name, "system:node:"+n.Name, []string{"system:nodes"}, n.Name, nodeIP(i))
	}
	if err != nil {
		return err
	}
	for name, p := range pairs {
		if err := os.WriteFile(filepath.Join(c.pkiDir(), name+".crt"), p.Cert, 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(c.pkiDir(), name+".key"), p.Key, 0o600); err != nil {
			return err
		}
	}
	users := []string{"kube-controller-manager", "kube-scheduler"}
	for _, n := range c.state.Nodes {
		users = append(users, n.Name)
	}
	for _, u := range users {
		auth := &clientcmdapi.AuthInfo{ClientCertificateData: pairs[u].Cert, ClientKeyData: pairs[u].Key}
		if err := c.writeKubeconfig(c.kubeconfigFile(u), inside, auth); err != nil {
			return err
		}
	}
	auth := &clientcmdapi.AuthInfo{ClientCertificateData: pairs["admin"].Cert, ClientKeyData: pairs["admin"].Key}
	return c.writeKubeconfig(c.Kubeconfig(), "https://"+c.state.Address, auth)
}

// Kubeconfig is the administrator's, for use outside the cluster's namespaces.
func (c *Cluster) Kubeconfig() string { return c.kubeconfigFile("admin") }

// tokenSeconds is a day: nothing renews a token, and no test runs that long.
const tokenSeconds = 24 * 60 * 60

// ServiceAccountKubeconfig asks the API server for a token of a service account
// that exists, and returns the path of a kubeconfig with it, for a process inside
// the cluster's namespaces. It may do what RBAC lets that account do.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	return c.tokenKubeconfig(ctx, namespace, name, "account-"+namespace+"-"+name, nil)
}

// NodeServiceAccountKubeconfig is ServiceAccountKubeconfig with a token that is
// bound to a node: the API server knows the node of whoever brings it, as it does
// of a pod's own token, and refuses it when the Node object is gone.
func (c *Cluster) NodeServiceAccountKubeconfig(ctx context.Context, namespace, name, node string) (string, error) {
	object, err := c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s for node %s: %w", namespace, name, node, err)
	}
	return c.tokenKubeconfig(ctx, namespace, name, "account-"+namespace+"-"+name+"-"+node,
		&authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: object.UID})
}

func (c *Cluster) tokenKubeconfig(ctx context.Context, namespace, name, file string, bound *authenticationv1.BoundObjectReference) (string, error) {
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: bound}}
	answer, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	file = c.kubeconfigFile(file)
	return file, c.writeKubeconfig(file, inside, &clientcmdapi.AuthInfo{Token: answer.Status.Token})
}

func (c *Cluster) writeKubeconfig(file, server string, user *clientcmdapi.AuthInfo) error {
	authority, err := os.ReadFile(filepath.Join(c.pkiDir(), "ca.crt"))
	if err != nil {
		return err
	}
	const name = "vernier-cluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, file)
}
