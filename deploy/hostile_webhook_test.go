// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"encoding/base64"
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/certs"
)

// With a stolen token of the webhook nobody points its configuration elsewhere, or makes a
// Secret; what the webhook writes passes.
func TestHostileWebhookToken(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{
		"namespace.yaml", "rbac/webhook.yaml", "admission/webhook.yaml", "admission/webhook-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	c, all := apiserver.Client(t, stolen(t, cfg, v1alpha1.WebhookServiceAccount, nil)), apiserver.Client(t, unbounded(cfg, v1alpha1.WebhookServiceAccount))
	own := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: certs.ConfigurationName}}
	warns := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: own.ObjectMeta}
	other := own.DeepCopy()
	must.Do(t, admin.Get(t.Context(), client.ObjectKeyFromObject(own), other))
	other.ObjectMeta = metav1.ObjectMeta{Name: "other"}
	must.Do(t, admin.Create(t.Context(), other))
	const (
		field    = "webhooks: the webhook may change clientConfig.caBundle only"
		metadata = "metadata: the webhook may change the caBundle of its configuration only"
		foreign  = "may change the webhook configurations vernier-webhook only"
	)
	bundle := base64.StdEncoding.EncodeToString([]byte("bundle"))
	caBundle := `[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"` + bundle + `"}]`
	second := `{"name":"b.vernier.dev","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://evil.example.com/"}}`
	for name, tt := range map[string]struct {
		patch string // a JSON patch
		want  string
	}{
		"every request of the cluster": {`[{"op":"replace","path":"/webhooks/0/rules","value":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"]}]}]`, field},
		"every namespace":              {`[{"op":"remove","path":"/webhooks/0/namespaceSelector"}]`, field},
		"every pod":                    {`[{"op":"remove","path":"/webhooks/0/matchConditions"}]`, field},
		"a condition less":             {`[{"op":"remove","path":"/webhooks/0/matchConditions/0"}]`, field},
		"another server":               {`[{"op":"replace","path":"/webhooks/0/clientConfig","value":{"url":"https://evil.example.com/"}}]`, field},
		"another Service":              {`[{"op":"replace","path":"/webhooks/0/clientConfig/service/name","value":"evil"}]`, field},
		"another path":                 {`[{"op":"replace","path":"/webhooks/0/clientConfig/service/path","value":"/evil"}]`, field},
		"nothing refused while away":   {`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`, field},
		"a long wait":                  {`[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":30}]`, field},
		"another webhook":              {`[{"op":"add","path":"/webhooks/1","value":` + second + `}]`, field},
		"another webhook before":       {`[{"op":"add","path":"/webhooks/0","value":` + second + `}]`, field},
		"no webhook":                   {`[{"op":"remove","path":"/webhooks/0"}]`, field},
		"another name":                 {`[{"op":"replace","path":"/webhooks/0/name","value":"x.vernier.dev"}]`, field},
		"a label":                      {`[{"op":"add","path":"/metadata/labels/a","value":"b"}]`, metadata},
		"a finalizer":                  {`[{"op":"add","path":"/metadata/finalizers","value":["example.com/f"]}]`, metadata},
		"its caBundle":                 {caBundle, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, name, c.Patch(t.Context(), own.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(tt.patch)), client.DryRunAll), tt.want)
			if name != "nothing refused while away" { // it is so already
				expect(t, name+", of workloads", c.Patch(t.Context(), warns.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(tt.patch)), client.DryRunAll), tt.want)
			}
		})
	}
	expect(t, "a class", c.Create(t.Context(), gold()), "forbidden")
	caOf := client.RawPatch(types.JSONPatchType, []byte(caBundle))
	expect(t, "the caBundle of another configuration", c.Patch(t.Context(), other.DeepCopy(), caOf, client.DryRunAll), "forbidden")
	expect(t, "the same, whatever RBAC says", all.Patch(t.Context(), other.DeepCopy(), caOf, client.DryRunAll), foreign)
	expect(t, "its configuration gone", all.Delete(t.Context(), own.DeepCopy(), client.DryRunAll), foreign)
	another := other.DeepCopy()
	another.ObjectMeta = metav1.ObjectMeta{Name: "another"}
	expect(t, "one more configuration", all.Create(t.Context(), another, client.DryRunAll), foreign)
	validating := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: another.ObjectMeta}
	expect(t, "one more that validates", all.Create(t.Context(), validating, client.DryRunAll), foreign)
	expect(t, "its other configuration gone", all.Delete(t.Context(), warns.DeepCopy(), client.DryRunAll), foreign)
	expect(t, "an administrator", admin.Patch(t.Context(), own.DeepCopy(),
		client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":30}]`)), client.DryRunAll), "")

	// Its Secret.
	secret := &corev1.Secret{}
	must.Do(t, c.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: certs.SecretName}, secret))
	if len(secret.Data) > 0 || secret.Type != corev1.SecretTypeOpaque {
		t.Errorf("it is installed with %d keys, of type %s", len(secret.Data), secret.Type)
	}
	secret.Data = map[string][]byte{"ca.crt": []byte("x")}
	expect(t, "its Secret", c.Update(t.Context(), secret), "")
	forged := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "forged"}}
	expect(t, "a Secret", c.Create(t.Context(), forged), "forbidden")
	apply := client.RawPatch(types.ApplyYAMLPatchType, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"forged","namespace":%q}}`, v1alpha1.SystemNamespace))
	expect(t, "a Secret, applied", c.Patch(t.Context(), forged, apply, client.FieldOwner("x")), "forbidden")

	// Installed once more, the Secret keeps what the webhook wrote.
	apiserver.Apply(t, cfg, "rbac/webhook.yaml")
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil || string(secret.Data["ca.crt"]) != "x" {
		t.Errorf("after it was applied again it has %v: %v", secret.Data, err)
	}
}
