// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/cluster/pki"
	"vernier.dev/vernier/test/must"
)

const webhookEnv = "VERNIER_TEST_WEBHOOK_CERTIFICATES"

// serveWebhook is what the test binary does in the place of a webhook's replica:
// it refuses everything, under the name that it was given.
func serveWebhook() {
	dir := os.Getenv(webhookEnv)
	handler := func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Result: &metav1.Status{Message: "refused by " + os.Getenv("REPLICA")},
		}
		_ = json.NewEncoder(w).Encode(review)
	}
	err := http.ListenAndServeTLS(":9443", filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), http.HandlerFunc(handler))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// testWebhookBehindService: without a kube-proxy the API server dials what
// PublishEndpoints put behind the Service, and only that.
func testWebhookBehindService(t *testing.T, c *cluster.Cluster) {
	ca := must.Get(pki.NewAuthority("webhook"))(t)
	pair := must.Get(ca.Issue("webhook", nil, "hook.default.svc"))(t)
	dir := t.TempDir()
	for name, data := range map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}
	must.Get(c.Client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}))(t)
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.vernier.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds: ptr.To[int32](2),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				CABundle: ca.Cert, Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hook"},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	must.Get(c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), hook, metav1.CreateOptions{}))(t)
	for _, replica := range []string{"replica-a", "replica-b"} {
		place := must.Get(c.AddPlace(replica))(t)
		server := must.Get(c.StartProcess(cluster.Command{
			Name: replica, Place: replica, Argv: []string{os.Args[0]}, Env: []string{webhookEnv + "=" + dir, "REPLICA=" + replica},
		}))(t)
		must.Do(t, c.PublishEndpoints(t.Context(), "default", "hook", "https", 9443, place))
		await(t, "a refusal by "+replica, func() (bool, error) {
			_, err := c.Client.CoreV1().ConfigMaps("default").Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "refused-"}}, metav1.CreateOptions{})
			return err != nil && strings.Contains(err.Error(), "refused by "+replica), err
		})
		must.Do(t, server.Kill(t.Context())) // the API server keeps connections that live
	}
	must.Do(t, c.PublishEndpoints(t.Context(), "default", "hook", "https", 9443))
	await(t, "an error that no endpoint is there", func() (bool, error) {
		_, err := c.Client.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "refused-"}}, metav1.CreateOptions{})
		return err != nil && strings.Contains(err.Error(), "failed calling webhook"), err
	})
}

// testServiceAccountKubeconfig: a part has its own identity, and no more rights
// than RBAC gives it.
func testServiceAccountKubeconfig(t *testing.T, c *cluster.Cluster) {
	must.Get(c.Client.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "part"}}, metav1.CreateOptions{}))(t)
	file := must.Get(c.ServiceAccountKubeconfig(t.Context(), "default", "part"))(t)
	ofNode := must.Get(c.NodeServiceAccountKubeconfig(t.Context(), "default", "part", c.Nodes[0].Name))(t)
	kubectl := c.Kubectl(t.Context()).Path
	for name, tc := range map[string]struct {
		file string
		args []string
		want string
	}{
		"who":   {file, []string{"auth", "whoami"}, "system:serviceaccount:default:part"},
		"may":   {file, []string{"get", "--raw", "/version"}, `"gitVersion"`},
		"must":  {file, []string{"get", "nodes"}, `cannot list resource "nodes"`},
		"where": {ofNode, []string{"auth", "whoami", "-o=jsonpath={.status.userInfo.extra}"}, `"authentication.kubernetes.io/node-name":["` + c.Nodes[0].Name + `"]`},
	} {
		// On a node: that is where a node's agent connects from.
		argv := c.Nodes[0].Argv(append([]string{kubectl, "--kubeconfig=" + tc.file}, tc.args...)...)
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
		got, err := cmd.CombinedOutput() // it may well fail
		if !strings.Contains(string(got), tc.want) {
			t.Errorf("%s: kubectl %v: want %q in\n%s (%v)", name, tc.args, tc.want, got, err)
		}
	}
	if _, err := c.ServiceAccountKubeconfig(t.Context(), "default", "nobody"); err == nil || !strings.Contains(err.Error(), "default/nobody") {
		t.Errorf("a service account that does not exist: %v", err)
	}
	if _, err := c.NodeServiceAccountKubeconfig(t.Context(), "default", "part", "nowhere"); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a node that does not exist: %v", err)
	}
}
