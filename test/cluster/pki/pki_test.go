// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"slices"
	"testing"

	"vernier.dev/vernier/test/must"
)

func parse(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(data)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %q", data)
	}
	cert := must.Get(x509.ParseCertificate(block.Bytes))(t)
	return cert
}

func TestIssue(t *testing.T) {
	ca := must.Get(NewAuthority("root"))(t)
	other := must.Get(NewAuthority("root"))(t)
	pair := must.Get(ca.Issue("system:node:n1", []string{"system:nodes"}, "n1", "10.0.0.1"))(t)
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Errorf("key and certificate: %v", err)
	}
	cert := parse(t, pair.Cert)
	if cert.Subject.CommonName != "system:node:n1" || !slices.Equal(cert.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("subject %v", cert.Subject)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parse(t, ca.Cert))
	for _, name := range []string{"n1", "10.0.0.1"} {
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("as %s: %v", name, err)
			}
		}
	}
	if len(cert.IPAddresses) != 1 || !cert.IPAddresses[0].Equal(net.IPv4(10, 0, 0, 1)) {
		t.Errorf("addresses %v", cert.IPAddresses)
	}
	strangers := x509.NewCertPool()
	strangers.AddCert(parse(t, other.Cert))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: strangers}); err == nil {
		t.Error("another authority of the same name vouches for it")
	}
	if cert.IsCA || cert.CheckSignatureFrom(parse(t, ca.Cert)) != nil {
		t.Error("it is an authority itself, or not signed by its own")
	}
}

func TestSigningKey(t *testing.T) {
	pair := must.Get(NewSigningKey())(t)
	private, _ := pem.Decode(pair.Key)
	public, _ := pem.Decode(pair.Cert)
	key := must.Get(x509.ParseECPrivateKey(private.Bytes))(t)
	parsed, err := x509.ParsePKIXPublicKey(public.Bytes)
	if err != nil || !key.PublicKey.Equal(parsed) {
		t.Errorf("the public key is not that of the private one: %v", err)
	}
}
