// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"vernier.dev/vernier/allocator/advice"
	"vernier.dev/vernier/api/access"
	"vernier.dev/vernier/api/v1alpha1"
)

// LeaseName is the Lease, in the system's namespace, whose holder leads.
const LeaseName = "vernier-allocator"

// Timing of the lease. A standby takes over at most lease + 2 × 2.2 × retry after
// the leader's last sign of life (a retry is drawn out by up to 2.2 at random):
// 4.4 s. A leader that cannot reach the API server for renew steps down before
// that; it costs a restart with the other replica warm, and no pod its place.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 300 * time.Millisecond
)

// NewManager is a replica's manager: leader election, metrics and health, all but
// the allocator. An address of "0" serves nothing.
func NewManager(cfg *rest.Config, metrics, health string) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(kubernetes.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	// One worker: the API server's own fairness is limit enough.
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	mgr, err := manager.New(cfg, manager.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{ByObject: map[client.Object]cache.ByObject{&v1alpha1.SliceUsage{}: {Transform: advice.Slim}}},
		Metrics:                       access.Metrics(metrics),
		HealthProbeBindAddress:        health,
		LeaderElection:                true,
		LeaderElectionID:              LeaseName,
		LeaderElectionNamespace:       v1alpha1.SystemNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 ptr.To(leaseDuration),
		RenewDeadline:                 ptr.To(renewDeadline),
		RetryPeriod:                   ptr.To(retryPeriod),
	})
	if err != nil {
		return nil, err
	}
	return mgr, mgr.AddHealthzCheck("ping", healthz.Ping)
}
