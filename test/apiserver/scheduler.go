// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
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
// server until the test ends.
func StartScheduler(t testing.TB, cfg *rest.Config) {
	t.Helper()
	dirs := must.Get(tools.Ensure(t.Context(), os.Stderr, tools.Kubernetes))(t)
	Run(t, filepath.Join(dirs[0], "kube-scheduler"), nil, "--kubeconfig="+Kubeconfig(t, cfg), "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=5000", "--kube-api-burst=5000")
}

// Run runs a program until the test ends, with an environment beside the test's. The last of what
// it logs is shown if the test fails.
func Run(t testing.TB, program string, env []string, args ...string) {
	t.Helper()
	log := must.Get(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text := must.Get(os.ReadFile(log.Name()))(t)
			t.Logf("%s: %s", filepath.Base(program), text[max(0, len(text)-8192):])
		}
		must.Report(t, log.Close())
	})
}

// Kubeconfig writes the configuration to a file, and returns its path.
func Kubeconfig(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	const name = "test"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*c, file))
	return file
}
