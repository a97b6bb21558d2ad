// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
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

// Whatever step of a rotation the certificates stop at, and whatever is written between its
// steps: no pod that asks gets past the webhook, the others are created all the
// while, and the webhook puts it right by itself.
func TestHostileRotation(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml",
		"admission/webhook-policy.yaml", "admission/policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	now := time.Now()
	// Its clock is behind: what it makes has expired for the API server.
	clock := clocktesting.NewFakeClock(now.Add(-250 * 24 * time.Hour))
	replicas := []string{address(t), address(t)}
	install(t, cfg, replicas[0])
	start(t, cfg, replicas[0], webhook.Options{Clock: clock})

	admits := func(when string) bool {
		t.Helper()
		pod := asking(enabled)
		err := c.Create(t.Context(), pod, client.DryRunAll)
		switch {
		case err == nil && (pod.Annotations[api.AnnotationShares] != shares || len(pod.Spec.SchedulingGates) == 0):
			t.Errorf("%s: a pod got past the webhook: %v", when, pod.Annotations)
		case err != nil && !strings.Contains(err.Error(), "failed calling webhook"):
			t.Errorf("%s: %v", when, err)
		}
		for _, namespace := range []string{enabled, other} {
			if err := c.Create(t.Context(), plain(namespace), client.DryRunAll); err != nil {
				t.Errorf("%s: a pod that asks for nothing: %v", when, err)
			}
		}
		if err := c.Create(t.Context(), asking(other), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "not enabled") {
			t.Errorf("%s: a pod that asks elsewhere: %v", when, err)
		}
		return err == nil
	}
	refuses := func(when string) {
		t.Helper()
		await(t, when+": pods that ask are refused", func() bool { return !admits(when) })
	}
	config := func() *admissionv1.MutatingWebhookConfiguration {
		found := &admissionv1.MutatingWebhookConfiguration{}
		must.Do(t, c.Get(t.Context(), client.ObjectKey{Name: certs.ConfigurationName}, found))
		return found
	}
	secret := func() *corev1.Secret {
		found := &corev1.Secret{}
		must.Do(t, c.Get(t.Context(), client.ObjectKey{Namespace: api.SystemNamespace, Name: certs.SecretName}, found))
		return found
	}
	// whole reports if a replica serves what the Secret has, the API server is told to
	// trust that, and pods are admitted with it.
	whole := func(when, replica string) bool {
		if clock.HasWaiters() {
			clock.Step(time.Second)
		}
		admitted := admits(when)
		der := served(replica)
		block, _ := pem.Decode(secret().Data[corev1.TLSCertKey])
		if der == nil || block == nil || !bytes.Equal(block.Bytes, der) {
			return false
		}
		leaf, err := x509.ParseCertificate(der)
		roots := x509.NewCertPool()
		if err != nil || !roots.AppendCertsFromPEM(config().Webhooks[0].ClientConfig.CABundle) {
			return false
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: clock.Now()})
		return err == nil && admitted
	}
	recovers := func(when string) {
		t.Helper()
		await(t, when+": the webhook puts it right", func() bool { return whole(when, replicas[0]) })
	}

	await(t, "it serves its first certificate", func() bool { return served(replicas[0]) != nil })
	refuses("expired")
	clock.SetTime(now.Add(-time.Hour)) // every look moves it on
	recovers("expired")

	foreign := newAuthority(t, now.Add(-3*time.Hour))
	stray := foreign.serving(t)
	for _, bundle := range [][]byte{foreign.cert, nil, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")} {
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			with := config()
			with.Webhooks[0].ClientConfig.CABundle = bundle
			return c.Update(t.Context(), with)
		}); err != nil {
			if len(bundle) > 0 && strings.Contains(err.Error(), "caBundle") {
				continue // the API server itself refuses what is no certificate
			}
			t.Fatal(err)
		}
		refuses("caBundle " + string(bundle))
		recovers("caBundle " + string(bundle))
	}

	ahead := newAuthority(t, now.Add(48*time.Hour))
	for name, with := range map[string]map[string][]byte{
		"a certificate without its key": {corev1.TLSPrivateKeyKey: nil},
		"a certificate before its key":  {corev1.TLSCertKey: stray.cert},
		"a key before its certificate":  {corev1.TLSPrivateKeyKey: stray.key},
		"half of it": {corev1.TLSCertKey: secret().Data[corev1.TLSCertKey][:100],
			"ca.crt": secret().Data["ca.crt"][:100]},
		"an authority before its key":                  {"ca.crt": foreign.cert},
		"an authority's key before it":                 {"ca.key": foreign.key},
		"an authority before what it signs":            {"ca.crt": foreign.cert, "ca.key": foreign.key},
		"what it signs before the authority":           {corev1.TLSCertKey: stray.cert, corev1.TLSPrivateKeyKey: stray.key},
		"an authority of a clock that is ahead":        {"ca.crt": ahead.cert, "ca.key": ahead.key},
		"an authority and nothing else, of that clock": {"ca.crt": ahead.cert, "ca.key": ahead.key, corev1.TLSCertKey: nil, corev1.TLSPrivateKeyKey: nil},
		"nothing": {"ca.crt": nil, "ca.key": nil, corev1.TLSCertKey: nil, corev1.TLSPrivateKeyKey: nil},
	} {
		must.Do(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			half := secret()
			for key, value := range with {
				half.Data[key] = value
			}
			return c.Update(t.Context(), half)
		}))
		// What the replica has goes on being served until it looks.
		admits(name)
		recovers(name)
	}

	// One that starts just then has nothing of before.
	half := secret()
	half.Data[corev1.TLSPrivateKeyKey] = nil
	must.Do(t, c.Update(t.Context(), half))
	start(t, cfg, replicas[1], webhook.Options{Clock: clock})
	for _, replica := range replicas {
		await(t, "a replica that starts in the middle", func() bool { return whole("a replica that starts", replica) })
	}
}

// Files of somebody else's making that change one after the other: the pair of before is
// served until there is another.
func TestHostileCertificateFiles(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/webhook-policy.yaml"}})
	at, dir := address(t), t.TempDir()
	first := selfSigned(t, dir, at)
	install(t, cfg, at)
	start(t, cfg, at, webhook.Options{CertDir: dir})
	serves := func(text []byte) func() bool {
		block, _ := pem.Decode(text)
		return func() bool { return bytes.Equal(served(at), block.Bytes) }
	}
	await(t, "the first pair is served", serves(first))

	next := t.TempDir()
	second := selfSigned(t, next, at)
	for _, step := range []struct{ file, text string }{
		{"tls.crt", ""}, {"tls.crt", string(second[:len(second)/2])}, {"tls.crt", string(second)}, {"tls.key", ""},
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, step.file), []byte(step.text), 0o600))
		if !serves(first)() {
			t.Errorf("%s of %d bytes: the first pair is not served any more", step.file, len(step.text))
		}
	}
	key, err := os.ReadFile(filepath.Join(next, "tls.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600)
	}
	must.Do(t, err)
	await(t, "the second pair is served", serves(second))
}

// pair is a certificate and its key, as the Secret has them.
type pair struct {
	cert, key []byte
	parsed    *x509.Certificate
	signer    *ecdsa.PrivateKey
}

// newAuthority is one that nobody has heard of.
func newAuthority(t *testing.T, from time.Time) pair {
	t.Helper()
	return signed(t, &x509.Certificate{Subject: pkix.Name{CommonName: "somebody's"}, NotBefore: from, NotAfter: from.Add(10_000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
}

func (p *pair) serving(t *testing.T) pair {
	t.Helper()
	return signed(t, &x509.Certificate{NotBefore: p.parsed.NotBefore, NotAfter: p.parsed.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, p)
}

func signed(t *testing.T, template *x509.Certificate, by *pair) (p pair) {
	t.Helper()
	var err error
	if p.signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	parent, signer := template, p.signer
	if by != nil {
		parent, signer = by.parsed, by.signer
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, parent, p.signer.Public(), signer))(t)
	if p.parsed, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	key := must.Get(x509.MarshalECPrivateKey(p.signer))(t)
	p.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key})
	return p
}
