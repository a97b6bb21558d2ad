// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Where the parts serve their metrics.
const (
	replicaMetrics = ":8443"
	agentMetrics   = ":9400"
)

// MetricsAddress is where Prometheus reads the part.
func (p *Process) MetricsAddress() string { return p.Place.IP + p.metricsPort }

// Metrics is what the part tells a Prometheus that may read it.
func (p *Process) Metrics(ctx context.Context) (string, error) {
	return p.MetricsFor(ctx, p.metricsToken)
}

// MetricsFor is what the part tells the bearer of a token; empty is none.
func (p *Process) MetricsFor(ctx context.Context, token string) (string, error) {
	return p.get(ctx, "https://127.0.0.1"+p.metricsPort+"/metrics", token)
}

// makeMetricsToken is for all reading of the system's metrics.
func (s *System) makeMetricsToken(ctx context.Context) error {
	seconds := int64(24 * 60 * 60)
	made, err := s.Kube.CoreV1().ServiceAccounts(v1alpha1.SystemNamespace).CreateToken(ctx, v1alpha1.MetricsServiceAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err == nil {
		s.metricsToken = made.Status.Token
	}
	return err
}

// get reads what a part serves, from inside its place.
func (p *Process) get(ctx context.Context, url, token string) (string, error) {
	c := &http.Client{Transport: &http.Transport{
		DialContext: p.Place.Dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, text)
	}
	return string(text), err
}
