// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
)

// The README's own command installs everything, and the kustomization names no
// other.
func TestInstall(t *testing.T) {
	readme := must.Get(os.ReadFile("../README.md"))(t)
	command := regexp.MustCompile("`(kubectl apply [^`]*)`").FindSubmatch(readme)
	if command == nil {
		t.Fatal("README.md: no `kubectl apply`")
	}
	head := must.Get(os.ReadFile("kustomization.yaml"))(t)
	if !strings.Contains(string(head), "\n# "+string(command[1])+"\n") {
		t.Errorf("README.md says %q, kustomization.yaml does not", command[1])
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

// The README's own commands take Vernier's gate off waiting pods, and no other.
func TestRemove(t *testing.T) {
	readme := must.Get(os.ReadFile("../README.md"))(t)
	blocks := regexp.MustCompile("(?s)## Remove it\n.*?```sh\n(.*?)```.*?```sh\n(.*?)```").FindSubmatch(readme)
	if blocks == nil {
		t.Fatal("README.md: no section \"Remove it\" with two blocks of commands")
	}
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "admission/policy.yaml", "admission/node-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}}
	waiting := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: "team", Annotations: map[string]string{
			v1alpha1.AnnotationShares:          `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memPercent":30}}}`,
			v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue,
		}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/other"}, {Name: v1alpha1.Gate}},
			Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("30")}}}},
		},
	}
	plain := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "plain", Namespace: "team"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	for _, object := range []client.Object{ns, waiting, plain} {
		must.Do(t, admin.Create(t.Context(), object))
	}
	// What the reader removes is all there, as far as admission goes.
	for _, object := range apiserver.Manifests(t, "admission/webhook.yaml") {
		must.Do(t, admin.Create(t.Context(), object))
	}
	run := kubectl(t, cfg)
	if out, err := run(string(blocks[2])); err == nil {
		t.Fatalf("the gate came off while the policies stood:\n%s", out)
	}
	if out, err := run(string(blocks[1])); err != nil {
		t.Fatalf("%s%v: %s", blocks[1], err, out)
	}
	var out []byte
	var err error
	if wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 90*time.Second, true, func(context.Context) (bool, error) {
		out, err = run(string(blocks[2]))
		return err == nil, nil
	}) != nil {
		t.Fatalf("%s%v: %s", blocks[2], err, out)
	}
	must.Do(t, admin.Get(t.Context(), client.ObjectKeyFromObject(waiting), waiting))
	if gates := waiting.Spec.SchedulingGates; len(gates) != 1 || gates[0].Name != "example.com/other" {
		t.Errorf("the pod's gates are %v, want the other one alone", gates)
	}
}

// The README's own command takes what nodes advertise of Vernier's resources, those of classes
// included, and no other.
func TestRemoveCapacity(t *testing.T) {
	readme := must.Get(os.ReadFile("../README.md"))(t)
	command := regexp.MustCompile("(?s)## Remove it\n.*?\n(kubectl get nodes [^`]*)```").FindSubmatch(readme)
	if command == nil {
		t.Fatal("README.md: no `kubectl get nodes` in \"Remove it\"")
	}
	cfg := apiserver.Start(t, apiserver.Options{})
	admin, one := apiserver.Client(t, cfg), resource.MustParse("1")
	for name, capacity := range map[string]corev1.ResourceList{
		"bare": {"cpu": one},
		"gpus": {"cpu": one, v1alpha1.ResourceCore: one, v1alpha1.ResourceMemPercent: one, v1alpha1.ResourceMemMiB: one, v1alpha1.ResourceGPUs: one,
			v1alpha1.ClassResource("gold"): one, "vernier.example.com/gpu-gold": one},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must.Do(t, admin.Create(t.Context(), node))
		node.Status.Capacity = capacity
		must.Do(t, admin.Status().Update(t.Context(), node))
	}
	run := kubectl(t, cfg)
	// It can be run again.
	for range 2 {
		if out, err := run(string(command[1])); err != nil {
			t.Fatalf("%s%v: %s", command[1], err, out)
		}
	}
	for name, want := range map[string]int{"bare": 1, "gpus": 2} {
		node := &corev1.Node{}
		must.Do(t, admin.Get(t.Context(), client.ObjectKey{Name: name}, node))
		if len(node.Status.Capacity) != want || len(v1alpha1.Ours(node.Status.Capacity)) > 0 {
			t.Errorf("node %s has %v", name, node.Status.Capacity)
		}
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
