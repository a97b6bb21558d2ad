// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (c *Cluster) startCore(name string, argv ...string) (*Process, error) {
	return c.StartProcess(Command{Name: name, Core: true, Argv: argv})
}

// startForward makes the API server reachable from outside its namespace.
func (c *Cluster) startForward() (err error) {
	c.state.Address, err = c.Forward("forward", net.JoinHostPort(controlPlaneIP, "443"))
	return err
}

// Forward makes an address of a place reachable from outside the namespaces, as long as
// the cluster is up: on a port of the machine's loopback that the kernel chooses. The name
// is the process's.
func (c *Cluster) Forward(name, address string) (outside string, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = c.StartProcess(Command{Name: name, Core: true, files: []*os.File{f}, Argv: []string{c.tools.forward, address}})
	return l.Addr().String(), err
}

// startAPIServer returns when it is ready; etcd starts beside it.
func (c *Cluster) startAPIServer(ctx context.Context) error {
	const etcdURL = "http://127.0.0.1:2379"
	const peerURL = "http://127.0.0.1:2380"
	_, err := c.startCore("etcd", c.tools.etcd, "--name=vernier", "--data-dir="+filepath.Join(c.state.Dir, "etcd"),
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=vernier="+peerURL,
		// A test's data need not survive a power failure.
		"--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return err
	}
	pki := func(name string) string { return filepath.Join(c.pkiDir(), name) }
	api, err := c.startCore("kube-apiserver", c.tools.kubernetes("kube-apiserver"),
		"--etcd-servers="+etcdURL,
		"--bind-address=0.0.0.0", "--advertise-address="+controlPlaneIP, "--secure-port=443",
		"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
		"--client-ca-file="+pki("ca.crt"),
		"--kubelet-client-certificate="+pki("kubelet-client.crt"), "--kubelet-client-key="+pki("kubelet-client.key"),
		"--kubelet-certificate-authority="+pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+pki("sa.crt"), "--service-account-signing-key-file="+pki("sa.key"),
		"--requestheader-client-ca-file="+pki("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+pki("front-proxy-client.crt"), "--proxy-client-key-file="+pki("front-proxy-client.key"),
		"--service-cluster-ip-range="+serviceRange,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		// Without a kube-proxy a Service's address leads nowhere; with this the API
		// server dials a webhook's endpoints instead.
		"--enable-aggregator-routing=true",
		// By it test/bench/throughput sees what a pod costs. Administrators only.
		"--profiling=true")
	if err != nil {
		return err
	}
	return api.await(ctx, "API server ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // one that waits at the forwarder
		defer cancel()
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// startControllers returns when the first service account is there: without it
// no pod is admitted.
func (c *Cluster) startControllers(ctx context.Context) error {
	pki := func(name string) string { return filepath.Join(c.pkiDir(), name) }
	component := func(name string, more ...string) (*Process, error) {
		kubeconfig := c.kubeconfigFile(name)
		return c.startCore(name, append([]string{
			c.tools.kubernetes(name), "--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false",
		}, more...)...)
	}
	// At its default rate the scheduler binds 50 pods a second.
	if _, err := component("kube-scheduler", "--kube-api-qps=5000", "--kube-api-burst=5000"); err != nil {
		return err
	}
	manager, err := component("kube-controller-manager",
		"--service-account-private-key-file="+pki("sa.key"), "--root-ca-file="+pki("ca.crt"),
		"--cluster-signing-cert-file="+pki("ca.crt"), "--cluster-signing-key-file="+pki("ca.key"),
		"--use-service-account-credentials=true",
		// It asks for a token per controller before it starts any; at its default
		// rate that is four seconds.
		"--kube-api-qps=500", "--kube-api-burst=500")
	if err != nil {
		return err
	}
	return manager.await(ctx, "the first service account", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (c *Cluster) pkiDir() string { return filepath.Join(c.state.Dir, "pki") }

func (c *Cluster) kubeconfigFile(user string) string {
	return filepath.Join(c.state.Dir, "kubeconfig", user)
}

func (c *Cluster) step(format string, args ...any) {
	fmt.Fprintf(c.progress, "%5.1f s  %s\n", time.Since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}
