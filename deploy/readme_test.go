// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
)

// The page's own command installs everything, and the kustomization names no
// other.
func TestInstall(t *testing.T) {
	page := must.Get(os.ReadFile("../docs/install.md"))(t)
	command := regexp.MustCompile("`(kubectl apply [^`]*)`").FindSubmatch(page)
	if command == nil {
		t.Fatal("docs/install.md: no `kubectl apply`")
	}
	head := must.Get(os.ReadFile("kustomization.yaml"))(t)
	if !strings.Contains(string(head), "\n# "+string(command[1])+"\n") {
		t.Errorf("docs/install.md says %q, kustomization.yaml does not", command[1])
	}
	run := kubectl(t, apiserver.Start(t, apiserver.Options{}))
	// Twice: an upgrade is the same command.
	for range 2 {
		if out, err := run(string(command[1])); err != nil {
			t.Fatalf("%s: %v: %s", command[1], err, out)
		}
	}
	out, err := run("kubectl -n vernier-system get deployment/vernier-webhook deployment/vernier-allocator daemonset/vernier-node service/vernier-webhook")
	if err != nil {
		t.Errorf("not installed: %v: %s", err, out)
	}
}

// The commands of the documentation switch a dialect on, in the flags and in the match
// condition. They run on a copy of the folder: what they render is not to be kept.
func TestDialectsWithoutHelm(t *testing.T) {
	page := must.Get(os.ReadFile("../docs/migrate.md"))(t)
	block := regexp.MustCompile("(?s)## Without Helm\n.*?```sh\n(deploy/render.sh deploy/manifests [^\n]*)\n(kubectl [^\n]*)\n```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/migrate.md: no section \"Without Helm\" with its two commands")
	}
	copied := t.TempDir()
	kustomization := must.Get(os.ReadFile("kustomization.yaml"))(t)
	must.Do(t, os.WriteFile(filepath.Join(copied, "kustomization.yaml"), kustomization, 0o644))
	render := exec.CommandContext(t.Context(), "bash", "-c", strings.Replace(string(block[1]), " deploy/manifests ", " "+filepath.Join(copied, "manifests")+" ", 1))
	render.Dir = ".."
	if out, err := render.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", block[1], err, out)
	}
	run := kubectl(t, apiserver.Start(t, apiserver.Options{}))
	if out, err := run(strings.Replace(string(block[2]), "-k deploy", "-k "+copied, 1)); err != nil {
		t.Fatalf("%s: %v: %s", block[2], err, out)
	}
	args, err := run("kubectl -n vernier-system get deployment/vernier-webhook -o jsonpath='{.spec.template.spec.containers[0].args}'")
	if err != nil || !strings.Contains(string(args), "--dialects=hami") {
		t.Errorf("flags %s: %v", args, err)
	}
	condition := must.Get(run("kubectl get mutatingwebhookconfiguration/vernier-webhook -o jsonpath='{.webhooks[0].matchConditions[0].expression}'"))(t)
	hami := must.Get(dialect.Settings{Dialects: "hami"}.Set())(t)
	if unsent, unread := hami.HalfEnabled([]string{string(condition)}); len(unsent)+len(unread) > 0 {
		t.Errorf("half switched on: %q are not sent, %q not read", unsent, unread)
	}
	if unsent, unread := (dialect.Set{}).HalfEnabled([]string{string(condition)}); len(unsent) > 0 || len(unread) == 0 {
		t.Errorf("without the flag %q are not sent and %q not read", unsent, unread)
	}
}

// kubectl runs commands in the repository's folder with the kubectl of the API
// server's version, as an administrator.
func kubectl(t *testing.T, cfg *rest.Config) func(script string) ([]byte, error) {
	t.Helper()
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, file))
	return func(script string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "KUBECONFIG="+file, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
		return cmd.CombinedOutput()
	}
}
