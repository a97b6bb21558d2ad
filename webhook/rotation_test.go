// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"bytes"
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
	"k8s.io/client-go/util/retry"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook"
	"vernier.dev/vernier/webhook/certs"
)

// Two replicas renew the serving certificate and the authority, and pods are
// admitted all the while. The API server's clock is the real one, so theirs
// starts in the past and ends before now, however often it is moved on by a moment.
func TestRotation(t *testing.T) {
	const day = 24 * time.Hour
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/webhook-policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	now := time.Now()
	clock := clocktesting.NewFakeClock(now.Add(-250 * day))
	replicas := []string{address(t), address(t)}
	install(t, cfg, replicas[0])
	for _, at := range replicas {
		start(t, cfg, at, webhook.Options{Clock: clock})
	}

	bundle := func() []byte {
		config := &admissionv1.MutatingWebhookConfiguration{}
		must.Do(t, c.Get(t.Context(), client.ObjectKey{Name: certs.ConfigurationName}, config))
		return config.Webhooks[0].ClientConfig.CABundle
	}
	// pass is a moment of the fake clock, for those that wait for it. Where both are at
	// work, which may take long, it stands still.
	pass := func() {
		if clock.HasWaiters() {
			clock.Step(2 * time.Second)
		}
	}
	authorities := func() int { return bytes.Count(bundle(), []byte("BEGIN CERTIFICATE")) }
	// agreed waits for both replicas to serve the same certificate, another one
	// than before. Where one was overtaken by the other it tries again after a
	// moment of the fake clock.
	agreed := func(what string, before []byte) []byte {
		t.Helper()
		var cert []byte
		await(t, what, func() bool {
			pass()
			cert = served(replicas[0])
			return cert != nil && !bytes.Equal(cert, before) && bytes.Equal(cert, served(replicas[1]))
		})
		return cert
	}
	admits := func(when string) {
		t.Helper()
		await(t, "pods are admitted "+when, func() bool {
			return c.Create(t.Context(), asking(enabled), client.DryRunAll) == nil
		})
	}

	first := agreed("both serve the first certificate", nil)
	old := bundle()

	clock.SetTime(now.Add(-80 * day))
	second := agreed("both serve a renewed certificate", first)
	if !bytes.Equal(bundle(), old) {
		t.Error("the authority changed with the certificate")
	}
	admits("with the second certificate")

	clock.SetTime(now.Add(-12 * time.Hour))
	await(t, "a second authority is trusted", func() bool { pass(); return authorities() == 2 })
	if !bytes.HasSuffix(bundle(), old) {
		t.Error("the old authority is not trusted any more")
	}
	for _, at := range replicas {
		if !bytes.Equal(served(at), second) {
			t.Error("the new authority signed before every API server can have heard of it")
		}
	}
	admits("while two authorities are trusted")

	clock.SetTime(now.Add(-6 * time.Hour))
	agreed("both serve a certificate of the new authority", second)
	admits("with a certificate of the new authority")

	// Somebody applies the manifest again and with it an empty caBundle.
	must.Do(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		config := &admissionv1.MutatingWebhookConfiguration{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: certs.ConfigurationName}, config); err != nil {
			return err
		}
		config.Webhooks[0].ClientConfig.CABundle = nil
		return c.Update(t.Context(), config)
	}))
	await(t, "the caBundle is put back", func() bool { pass(); return authorities() == 2 })
	admits("after the manifest was applied again")
}

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
	must.Do(t, c.Get(t.Context(), key, config))
	config.Webhooks[0].ClientConfig.CABundle = bundle
	must.Do(t, c.Update(t.Context(), config))

	start(t, cfg, at, webhook.Options{CertDir: dir})
	await(t, "a pod is admitted", func() bool { return c.Create(t.Context(), asking(enabled), client.DryRunAll) == nil })

	must.Do(t, c.Get(t.Context(), key, config))
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
	at := must.Get(net.ResolveTCPAddr("tcp", address))(t)
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{at.IP},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert := must.Get(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	der := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, text := range map[string][]byte{"tls.crt": certificate,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return certificate
}
