// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
)

// servers are API servers that go from one test to the next: to start one takes longer
// than what most tests do with it.
type servers struct {
	mu   sync.Mutex
	idle []*rest.Config
	// ends are what ends them.
	ends []func()
}

var pool servers

func TestMain(m *testing.M) {
	code := m.Run()
	for _, end := range slices.Backward(pool.ends) {
		end()
	}
	os.Exit(code)
}

// keeper is a test whose cleanup is left to the end of all tests.
type keeper struct {
	testing.TB
	pool *servers
}

func (k keeper) Cleanup(end func()) {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	k.pool.ends = append(k.pool.ends, end)
}

// Errorf says what went wrong at the end of all tests, when none is left to fail: a server
// that took too long to end, and was killed.
func (k keeper) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// borrow is a server for as long as the test lasts, empty but for its namespaces.
func (p *servers) borrow(t *testing.T) *rest.Config {
	t.Helper()
	cfg := p.take()
	if cfg == nil {
		cfg = launch(keeper{t, p}, nil)
	}
	c := apiserver.Client(t, cfg)
	t.Cleanup(func() {
		if err := sweep(c); err != nil {
			t.Errorf("emptying the API server: %v", err)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, cfg)
	})
	return cfg
}

func (p *servers) take() *rest.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	cfg := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return cfg
}

// sweep deletes all that tests make and replicas leave.
func sweep(c client.Client) error {
	ctx := context.Background()
	return errors.Join(
		c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("ns"), client.GracePeriodSeconds(0)),
		c.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace("ns")),
		c.DeleteAllOf(ctx, &policyv1.PodDisruptionBudget{}, client.InNamespace("ns")),
		c.DeleteAllOf(ctx, &corev1.Node{}),
		c.DeleteAllOf(ctx, &v1alpha1.SliceLedger{}),
		c.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(v1alpha1.SystemNamespace)),
	)
}
