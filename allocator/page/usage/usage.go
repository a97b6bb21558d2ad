// SPDX-License-Identifier: Apache-2.0

// Package usage owns what the page knows of the use of containers. It reads the metrics of the node
// agents on the nodes that a user looks at, in the background.
//
// No reader of the page waits for an agent, and no more than a few agents are read at a
// time, whatever is looked at. Figures of use are the containers' own word, and nothing is
// decided on them.
package usage

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// every is how often an agent is read while somebody looks at its node, and old is from
	// when its last answer is not shown any more.
	every = 10 * time.Second
	old   = 3 * every
	// patience bounds one reading, atOnce how many are under way, and maxBytes an answer: a
	// node of many small slices has some 500 kB.
	patience = 3 * time.Second
	atOnce   = 16
	maxBytes = 4 << 20
	// tokenLife is the shortest that the API server makes.
	tokenLife = 10 * time.Minute
)

// Reading is what an agent said last.
type Reading struct {
	Uses []view.Use
	// Err says why there is nothing newer; a reading that was never made has neither.
	Err error
}

// Cache reads the agents. It is safe for concurrent use.
type Cache struct {
	accounts typedcorev1.ServiceAccountInterface
	address  func(node string) string
	clock    clock.PassiveClock
	client   *http.Client

	mu      sync.Mutex
	nodes   map[string]*node
	running int

	tokens sync.Mutex
	token  string
	renew  time.Time
}

type node struct {
	Reading
	asked, read, wanted time.Time
}

// New is a cache that knows nothing yet. Theaddress is a node's agent's metrics, as host:port,
// or empty while there is no agent. The accounts are those of the system's namespace, of which it
// takes tokens. They are good for metrics and nothing else: a request to a node is no
// secret there.
func New(accounts typedcorev1.ServiceAccountInterface, address func(node string) string, clock clock.PassiveClock) *Cache {
	return &Cache{
		accounts: accounts, address: address, clock: clock, nodes: map[string]*node{},
		// The agent's certificate is its own word, as for Prometheus.
		client: &http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // an agent sends nobody elsewhere
		}, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}},
	}
}

// Of returns what is known of the nodes, and has what is not new read in the background.
func (c *Cache) Of(ctx context.Context, names []string) map[string]Reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	for name, n := range c.nodes {
		if now.Sub(n.wanted) > old {
			delete(c.nodes, name)
		}
	}
	known := make(map[string]Reading, len(names))
	for _, name := range names {
		n := c.nodes[name]
		if n == nil {
			n = &node{}
			c.nodes[name] = n
		}
		n.wanted = now
		if now.Sub(n.asked) >= every && c.running < atOnce {
			n.asked = now
			c.running++
			go c.refresh(context.WithoutCancel(ctx), name, n)
		}
		if now.Sub(n.read) > old {
			n.Uses = nil
		}
		known[name] = n.Reading
	}
	return known
}

func (c *Cache) refresh(ctx context.Context, name string, n *node) {
	uses, err := c.readNode(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if n.Err = err; err == nil {
		n.Uses, n.read = uses, c.clock.Now()
	}
}

func (c *Cache) readNode(ctx context.Context, name string) ([]view.Use, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	address := c.address(name)
	if address == "" {
		return nil, errors.New("the node agent's pod is not ready, or its address is none of another machine")
	}
	token, err := c.bearer(ctx)
	if err != nil {
		return nil, fmt.Errorf("making a token for metrics: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxBytes:
		return nil, fmt.Errorf("the node agent answers with more than %d bytes", maxBytes)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the node agent answers %s: %.200s", resp.Status, strings.TrimSpace(string(text)))
	}
	return view.Uses(text)
}

// bearer is a token that is good for metrics, renewed at half of its life.
func (c *Cache) bearer(ctx context.Context) (string, error) {
	c.tokens.Lock()
	defer c.tokens.Unlock()
	now := c.clock.Now()
	if now.Before(c.renew) {
		return c.token, nil
	}
	made, err := c.accounts.CreateToken(ctx, v1alpha1.MetricsServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLife / time.Second))},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	c.token, c.renew = made.Status.Token, now.Add(tokenLife/2)
	return c.token, nil
}
