// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

// TestSoak on a real API server: fewer steps, with its own rules on what may change,
// its compare-and-swap, its graceful deletions and the sums that it checks.
func TestSoakOnAPIServer(t *testing.T) {
	t.Parallel()
	cfg := apiserver.Start(t, apiserver.Options{})
	cfg.QPS = -1
	api, err := client.NewWithWatch(cfg, client.Options{Scheme: objects.Scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}); err != nil {
		t.Fatal(err)
	}
	seeds := part(8)
	ran := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorldOn(t, api, testclock.NewFakeClock(time.Unix(0, 0)), int64(1000+seed), 2, 2, true)
			ran += w.run(300)
			for _, n := range w.nodes {
				w.must(client.IgnoreNotFound(api.Delete(context.Background(), objects.Node(n.name))))
				w.must(client.IgnoreNotFound(api.Delete(context.Background(), objects.Ledger(n.name))))
			}
			for _, p := range w.live {
				w.vanish(p.DeepCopy())
			}
		})
	}
	if ran < seeds {
		t.Errorf("%d pods ran: the test no longer places anything", ran)
	}
}
