// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/webhook"
	"vernier.dev/vernier/webhook/certs"
)

// With certificates of somebody else's making the webhook serves those, leaves its
// Secret empty and the caBundle alone.
func TestCertDir(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/webhook-policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	at, dir := address(t), t.TempDir()
	bundle := selfSigned(t, dir, at)
	install(t, cfg, at)
	key := client.ObjectKey{Name: certs.ConfigurationName}
	config := &admissionv1.MutatingWebhookConfiguration{}
	if err := c.Get(t.Context(), key, config); err != nil {
		t.Fatal(err)
	}
	config.Webhooks[0].ClientConfig.CABundle = bundle
	if err := c.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}

	start(t, cfg, at, webhook.Options{CertDir: dir})
	await(t, "a pod is admitted", func() bool { return c.Create(t.Context(), asking(enabled), client.DryRunAll) == nil })

	if err := c.Get(t.Context(), key, config); err != nil {
		t.Fatal(err)
	}
	if string(config.Webhooks[0].ClientConfig.CABundle) != string(bundle) {
		t.Error("the caBundle was changed")
	}
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: api.SystemNamespace, Name: certs.SecretName}, secret); err != nil || len(secret.Data) > 0 {
		t.Errorf("the Secret: %v %v, want it empty", secret.Data, err)
	}
}

// selfSigned writes tls.crt and tls.key for an address and returns the former.
func selfSigned(t *testing.T, dir, address string) []byte {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{at.IP},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, text := range map[string][]byte{"tls.crt": certificate,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate
}
