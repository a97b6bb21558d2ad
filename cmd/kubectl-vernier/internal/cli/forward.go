// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"

	"vernier.dev/vernier/api/v1alpha1"
)

// metricsPort is where the node agents serve their metrics.
const metricsPort = 9400

// forwarded reads node agents' metrics through the API server, which is all that a
// user can reach. It takes a port and not the API server's proxy because that hands
// no token on; and the token is not the user's own, which is nobody's business on a
// node, but one that is good for metrics only.
type forwarded struct {
	connect func() (*rest.Config, error)
	now     func() time.Time

	mu sync.Mutex
	session
}

// session is what serves for all agents, until its token is renewed: --watch may last longer.
type session struct {
	cfg   *rest.Config
	kube  kubernetes.Interface
	token string
	made  time.Time
}

// tokenAge is how old a token gets here. It is good for an hour from when it was made, by
// the API server's clock, which need not be ours.
const tokenAge = 30 * time.Minute

// start makes a session, or has one.
func (f *forwarded) start(ctx context.Context) (session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// By the clock on the wall: the other one stands still while a laptop sleeps.
	now := f.now().Round(0)
	if f.token != "" && now.Sub(f.made) < tokenAge {
		return f.session, nil
	}
	cfg, err := f.connect()
	if err != nil {
		return session{}, err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return session{}, err
	}
	made, err := kube.CoreV1().ServiceAccounts(v1alpha1.SystemNamespace).CreateToken(ctx, v1alpha1.MetricsServiceAccount,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return session{}, err
	}
	f.session = session{cfg, kube, made.Status.Token, now}
	return f.session, nil
}

// read is one agent's metrics.
func (f *forwarded) read(ctx context.Context, pod string) ([]byte, error) {
	s, err := f.start(ctx)
	if err != nil {
		return nil, err
	}
	target := s.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(v1alpha1.SystemNamespace).Name(pod).SubResource("portforward").URL()
	dialer, err := portforward.NewSPDYOverWebsocketDialer(target, s.cfg)
	if err != nil {
		return nil, err
	}
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	tunnel, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", metricsPort)}, stop, ready, nil, nil)
	if err != nil {
		return nil, err
	}
	go func() { ended <- tunnel.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		close(stop)
		return nil, ctx.Err()
	}
	defer close(stop)
	return s.get(ctx, tunnel)
}

// get asks at the near end of the tunnel.
func (s *session) get(ctx context.Context, tunnel *portforward.PortForwarder) ([]byte, error) {
	ports, err := tunnel.GetPorts()
	if err != nil {
		return nil, err
	}
	// The agent's certificate is its own word; the way there is the API server's.
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", ports[0].Local), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return text, err
}
