// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"vernier.dev/vernier/test/cluster/tools"
	"vernier.dev/vernier/test/must"
)

// StartScheduler runs the stock kube-scheduler, in its default profile, on the API
// server until the test ends. The last of what it logs is shown if the test fails.
func StartScheduler(t testing.TB, cfg *rest.Config) {
	t.Helper()
	dirs := must.Get(tools.Ensure(t.Context(), os.Stderr, tools.Kubernetes))(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*kubeconfig(cfg), file))
	var log bytes.Buffer
	scheduler := exec.Command(filepath.Join(dirs[0], "kube-scheduler"), "--kubeconfig="+file, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=5000", "--kube-api-burst=5000")
	scheduler.Stdout, scheduler.Stderr = &log, &log
	scheduler.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Do(t, scheduler.Start())
	t.Cleanup(func() {
		_ = scheduler.Process.Kill()
		_ = scheduler.Wait()
		if t.Failed() {
			last := log.Bytes()
			t.Logf("kube-scheduler: %s", last[max(0, len(last)-4096):])
		}
	})
}

// kubeconfig is the configuration as a file has it.
func kubeconfig(cfg *rest.Config) *clientcmdapi.Config {
	const name = "test"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return c
}
