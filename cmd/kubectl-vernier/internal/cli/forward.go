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

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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

	once  sync.Once
	cfg   *rest.Config
	kube  kubernetes.Interface
	token string
	err   error
}

// start makes the token that serves for all agents.
func (f *forwarded) start(ctx context.Context) {
	// What goes wrong in a tunnel is an error of who reads through it, and need not be
	// logged on his screen as well.
	utilruntime.ErrorHandlers = nil
	if f.cfg, f.err = f.connect(); f.err != nil {
		return
	}
	if f.kube, f.err = kubernetes.NewForConfig(f.cfg); f.err != nil {
		return
	}
	made, err := f.kube.CoreV1().ServiceAccounts(v1alpha1.SystemNamespace).CreateToken(ctx, v1alpha1.MetricsServiceAccount,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		f.err = err
		return
	}
	f.token = made.Status.Token
}

// read is one agent's metrics.
func (f *forwarded) read(ctx context.Context, pod string) ([]byte, error) {
	if f.once.Do(func() { f.start(ctx) }); f.err != nil {
		return nil, f.err
	}
	target := f.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(v1alpha1.SystemNamespace).Name(pod).SubResource("portforward").URL()
	dialer, err := portforward.NewSPDYOverWebsocketDialer(target, f.cfg)
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
	return f.get(ctx, tunnel)
}

// get asks at the near end of the tunnel.
func (f *forwarded) get(ctx context.Context, tunnel *portforward.PortForwarder) ([]byte, error) {
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
	req.Header.Set("Authorization", "Bearer "+f.token)
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
