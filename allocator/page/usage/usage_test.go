// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// accounts makes tokens that count up.
type accounts struct {
	typedcorev1.ServiceAccountInterface
	made atomic.Int32
}

func (a *accounts) CreateToken(_ context.Context, name string, r *authenticationv1.TokenRequest, _ metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	if name != v1alpha1.MetricsServiceAccount || *r.Spec.ExpirationSeconds > 600 {
		return nil, errors.New("forbidden")
	}
	r.Status.Token = fmt.Sprint("token-", a.made.Add(1))
	return r, nil
}

const said = `# TYPE container_accelerator_memory_used_bytes gauge
container_accelerator_memory_used_bytes{namespace="team",pod="train-0",container="main",model="A100",acc_id="GPU-a",node="n"} 1.048576e+08
# TYPE container_accelerator_duty_cycle gauge
container_accelerator_duty_cycle{namespace="team",pod="train-0",container="main",model="A100",acc_id="GPU-a",node="n"} 12
`

// agent counts what it is asked, and answers with text.
type agent struct {
	asked  atomic.Int32
	bearer atomic.Value
	text   string
	hold   chan struct{}
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked.Add(1)
	a.bearer.Store(r.Header.Get("Authorization"))
	if a.hold != nil {
		<-a.hold
	}
	_, _ = w.Write([]byte(a.text))
}

func serve(t *testing.T, a *agent) (c *Cache, clock *clocktesting.FakePassiveClock, of *accounts) {
	t.Helper()
	s := httptest.NewTLSServer(a)
	t.Cleanup(s.Close)
	clock, of = clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), &accounts{}
	return New(of, func(node string) string {
		if node == "away" {
			return ""
		}
		return s.Listener.Addr().String()
	}, clock), clock, of
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) { return done(), nil }); err != nil {
		t.Fatal("waited in vain")
	}
}

// idle reports whether no reading is under way.
func (c *Cache) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running == 0
}

// Nobody waits for an agent; it is read once in ten seconds, however many look, and what it
// said half a minute ago is not shown.
func TestReadsInTheBackground(t *testing.T) {
	a := &agent{text: said}
	c, clock, tokens := serve(t, a)
	of := func() Reading { return c.Of(t.Context(), []string{"n"})["n"] }
	if first := of(); first.Uses != nil || first.Err != nil {
		t.Errorf("before the first answer: %+v", first)
	}
	await(t, func() bool { return c.idle() })
	for range 3 {
		got := of()
		if len(got.Uses) != 1 || got.Uses[0].Pod != "train-0" || got.Uses[0].Used != 100 || *got.Uses[0].Duty != 12 {
			t.Fatalf("%+v", got)
		}
	}
	if n := a.asked.Load(); n != 1 || a.bearer.Load() != "Bearer token-1" {
		t.Errorf("asked %d times, the last time with %v", n, a.bearer.Load())
	}
	clock.SetTime(clock.Now().Add(tokenLife / 2))
	if got := of(); got.Uses != nil {
		t.Errorf("minutes later: %+v", got)
	}
	await(t, func() bool { return c.idle() })
	if n := a.asked.Load(); n != 2 || tokens.made.Load() != 2 {
		t.Errorf("asked %d times, with %d tokens, want 2 and 2", n, tokens.made.Load())
	}
}

// Agents that hang take no more than a few connections, and nodes that no reader asks for any
// more are forgotten.
func TestHostileAgents(t *testing.T) {
	a := &agent{hold: make(chan struct{})}
	c, clock, _ := serve(t, a)
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprint("n", i))
	}
	c.Of(t.Context(), names)
	await(t, func() bool { return a.asked.Load() == atOnce })
	c.Of(t.Context(), names)
	close(a.hold)
	await(t, func() bool { return c.idle() })
	if n := a.asked.Load(); n != atOnce {
		t.Errorf("%d agents were read at a time, want %d", n, atOnce)
	}
	clock.SetTime(clock.Now().Add(2 * old))
	c.Of(t.Context(), []string{"away"})
	await(t, func() bool { return c.idle() })
	if err := c.Of(t.Context(), []string{"away"})["away"].Err; err == nil || !strings.Contains(err.Error(), "not ready") || len(c.nodes) != 1 {
		t.Errorf("%v, and %d nodes", err, len(c.nodes))
	}
	a.text = strings.Repeat("#", maxBytes+1)
	c.Of(t.Context(), []string{"large"})
	await(t, func() bool { return c.idle() })
	if err := c.Of(t.Context(), []string{"large"})["large"].Err; err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("an endless answer: %v", err)
	}
}
