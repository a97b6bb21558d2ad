// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	authorityLife = 365 * 24 * time.Hour
	servingLife   = 90 * 24 * time.Hour
	// skew is by how much a certificate is valid before it is made: clocks of
	// the API servers may be behind.
	skew = 5 * time.Minute
	// settle is how long a new authority is trusted before it signs anything:
	// every API server must have taken up the bundle with it in the meantime.
	settle = time.Hour
)

// Keys of the Secret's data.
const (
	keyBundle       = "ca.crt" // authorities, newest first
	keyAuthorityKey = "ca.key" // key of the newest
	keyServing      = corev1.TLSCertKey
	keyServingKey   = corev1.TLSPrivateKeyKey
)

// material is everything that the Secret holds, and nothing else: whatever is
// unreadable in it is as if it were not there.
type material struct {
	// authorities are trusted, newest first; signer is the newest's key, or nil.
	authorities []*x509.Certificate
	signer      *ecdsa.PrivateKey
	// serving is nil, or a certificate with its key and Leaf.
	serving *tls.Certificate
}

func load(data map[string][]byte) *material {
	m := &material{}
	for rest := data[keyBundle]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.IsCA {
			m.authorities = append(m.authorities, cert)
		}
	}
	if block, _ := pem.Decode(data[keyAuthorityKey]); block != nil {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err == nil && len(m.authorities) > 0 && key.PublicKey.Equal(m.authorities[0].PublicKey) {
			m.signer = key
		}
	}
	if pair, err := tls.X509KeyPair(data[keyServing], data[keyServingKey]); err == nil {
		m.serving = &pair
	}
	return m
}

// bundle is what API servers are to trust.
func (m *material) bundle() []byte {
	var out []byte
	for _, cert := range m.authorities {
		out = append(out, encode("CERTIFICATE", cert.Raw)...)
	}
	return out
}

// store writes the material in the form that load reads.
func (m *material) store(data map[string][]byte) error {
	signer, err := x509.MarshalECPrivateKey(m.signer)
	if err != nil {
		return err
	}
	serving, err := x509.MarshalPKCS8PrivateKey(m.serving.PrivateKey)
	if err != nil {
		return err
	}
	data[keyBundle] = m.bundle()
	data[keyAuthorityKey] = encode("EC PRIVATE KEY", signer)
	data[keyServing] = encode("CERTIFICATE", m.serving.Leaf.Raw)
	data[keyServingKey] = encode("PRIVATE KEY", serving)
	return nil
}

// renew makes what is missing or due, and reports whether it made anything. A new
// authority is trusted beside the old one for as long as that is valid, and
// signs nothing before every API server trusts it.
func (m *material) renew(now time.Time, hosts []string) (bool, error) {
	before := len(m.authorities)
	m.authorities = slices.DeleteFunc(m.authorities, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	changed := len(m.authorities) != before
	if m.signer == nil || len(m.authorities) == 0 || due(m.authorities[0], now) ||
		now.Before(m.authorities[0].NotBefore) && !m.trusted(now, hosts) { // made by a clock that is ahead: nothing that it signs is accepted
		cert, key, err := newAuthority(now)
		if err != nil {
			return false, err
		}
		m.authorities, m.signer, changed = slices.Insert(m.authorities, 0, cert), key, true
	}
	newest := m.authorities[0]
	settled := now.After(newest.NotBefore.Add(skew + settle))
	if m.trusted(now, hosts) && (!settled || !due(m.serving.Leaf, now) && m.serving.Leaf.CheckSignatureFrom(newest) == nil) {
		return changed, nil
	}
	serving, err := newServing(now, hosts, newest, m.signer)
	if err != nil {
		return false, err
	}
	m.serving = serving
	return true, nil
}

// trusted reports whether an API server with our bundle accepts the certificate
// now, for every host.
func (m *material) trusted(now time.Time, hosts []string) bool {
	if m.serving == nil {
		return false
	}
	roots := x509.NewCertPool()
	for _, cert := range m.authorities {
		roots.AddCert(cert)
	}
	if _, err := m.serving.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err != nil {
		return false
	}
	return !slices.ContainsFunc(hosts, func(host string) bool { return m.serving.Leaf.VerifyHostname(host) != nil })
}

// due reports whether less than a third of a certificate's life is left.
func due(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// newAuthority makes a certificate authority that may sign serving certificates
// and nothing else.
func newAuthority(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Vernier webhook authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	return sign(template, now, authorityLife, nil, nil)
}

// newServing makes a certificate for the hosts: names or IP addresses.
func newServing(now time.Time, hosts []string, authority *x509.Certificate, signer *ecdsa.PrivateKey) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "Vernier webhook"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	cert, key, err := sign(template, now, servingLife, authority, signer)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// sign completes a template with a new key; without a parent it signs itself.
func sign(template *x509.Certificate, now time.Time, life time.Duration,
	parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(life)
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}
