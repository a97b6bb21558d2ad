// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	names = []string{"vernier-webhook.vernier-system.svc", "10.0.0.1"}
)

// reload sends material through the Secret's form.
func reload(t *testing.T, m *material) *material {
	t.Helper()
	data := map[string][]byte{}
	must.Do(t, m.store(data))
	return load(data)
}

// accepts reports whether a client with the bundle accepts the material's
// certificate.
func accepts(t *testing.T, bundle []byte, m *material, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatal("the bundle holds no certificate")
	}
	for _, name := range names {
		if _, err := m.serving.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: name}); err != nil {
			return err
		}
	}
	return nil
}

// Over years, an API server that is a step behind accepts every certificate, and
// one with the newest bundle accepts the certificate of a replica that is a step
// behind.
func TestRotationWithoutGap(t *testing.T) {
	const step = 8 * time.Hour // more than settle
	m := load(nil)
	now := start
	var renewals, authorities int
	var bundle []byte
	var behind *material
	for ; now.Before(start.Add(3 * authorityLife)); now = now.Add(step) {
		changed := must.Get(m.renew(now, names))(t)
		if changed {
			m = reload(t, m)
			renewals++
			if !bytes.Equal(bundle, m.bundle()) {
				authorities++
			}
		}
		if bundle != nil {
			if err := accepts(t, bundle, m, now); err != nil {
				t.Fatalf("%s: an API server that is behind: %v", now, err)
			}
			if err := accepts(t, m.bundle(), behind, now); err != nil {
				t.Fatalf("%s: a replica that is behind: %v", now, err)
			}
		}
		if n := len(m.authorities); n > 2 {
			t.Fatalf("%s: %d authorities are trusted", now, n)
		}
		bundle, behind = m.bundle(), m
	}
	// An authority lives 365 days and is replaced after two thirds of them: 1 at
	// the start and 4 later, of which 4 expired. A certificate lives 90 days.
	if authorities < 8 || authorities > 9 || renewals < 20 || renewals > 40 {
		t.Errorf("%d changes of the bundle and %d renewals in three years", authorities, renewals)
	}
}

func TestRenew(t *testing.T) {
	made := func(t *testing.T) *material {
		m := load(nil)
		must.Get(m.renew(start, names))(t)
		return reload(t, m)
	}
	for name, tt := range map[string]struct {
		change          func(m *material)
		after           time.Duration
		hosts           []string
		changed, signed bool // anything at all; a new serving certificate
		authorities     int
	}{
		"nothing is due":               {hosts: names, authorities: 1},
		"another host":                 {hosts: []string{"elsewhere"}, changed: true, signed: true, authorities: 1},
		"certificate gone":             {change: func(m *material) { m.serving = nil }, hosts: names, changed: true, signed: true, authorities: 1},
		"authority's key gone":         {change: func(m *material) { m.signer = nil }, hosts: names, changed: true, authorities: 2},
		"authorities gone":             {change: func(m *material) { m.authorities = nil }, hosts: names, changed: true, signed: true, authorities: 1},
		"certificate due":              {after: servingLife * 3 / 4, hosts: names, changed: true, signed: true, authorities: 1},
		"authority due, not yet used":  {after: authorityLife * 3 / 4, hosts: names, changed: true, signed: true, authorities: 2},
		"authority of a clock ahead":   {after: -48 * time.Hour, change: func(m *material) { m.serving = nil }, hosts: names, changed: true, signed: true, authorities: 2},
		"all expired, everybody slept": {after: 2 * authorityLife, hosts: names, changed: true, signed: true, authorities: 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := made(t)
			if tt.change != nil {
				tt.change(m)
			}
			before := m.serving
			now := start.Add(tt.after)
			changed := must.Get(m.renew(now, tt.hosts))(t)
			if changed != tt.changed || (m.serving != before) != tt.signed || len(m.authorities) != tt.authorities {
				t.Errorf("changed %v, signed %v, %d authorities; want %v, %v, %d",
					changed, m.serving != before, len(m.authorities), tt.changed, tt.signed, tt.authorities)
			}
			if !m.trusted(now, tt.hosts) {
				t.Error("the certificate is not trusted by the bundle")
			}
		})
	}
}

func TestLoadIgnoresRubbish(t *testing.T) {
	m := load(map[string][]byte{keyBundle: []byte("x"), keyAuthorityKey: []byte("-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n"),
		keyServing: {0}, keyServingKey: nil})
	if changed, err := m.renew(start, names); err != nil || !changed || accepts(t, m.bundle(), m, start) != nil {
		t.Errorf("renewing after rubbish: %v %v", changed, err)
	}
}
