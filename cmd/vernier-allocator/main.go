// SPDX-License-Identifier: Apache-2.0

// Command vernier-allocator places gated pods on nodes and devices. Run two: one
// leads, the other stands by with warm caches.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"vernier.dev/vernier/allocator"
	"vernier.dev/vernier/api/v1alpha1"
)

// Timing of the lease. A standby takes over at most lease + 2 × 2.2 × retry after
// the leader's last sign of life (a retry is drawn out by up to 2.2 at random):
// 4.4 s. A leader that cannot reach the API server for renew steps down before
// that; it costs a restart with the other replica warm, and no pod its place.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 300 * time.Millisecond
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vernier-allocator:", err)
		os.Exit(1)
	}
}

func run() error {
	metrics := flag.String("metrics-bind-address", ":8080", "host:port for Prometheus metrics, 0 for none")
	health := flag.String("health-probe-bind-address", ":8081", "host:port for /healthz and /readyz, 0 for none")
	logging := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logging)
	flag.Var(logging.Lookup("v").Value, "v", "log verbosity")
	flag.Parse()
	ctrl.SetLogger(klog.NewKlogr())

	scheme := runtime.NewScheme()
	if err := kubernetes.AddToScheme(scheme); err != nil {
		return err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	// One worker: the API server's own fairness is limit enough.
	cfg.QPS = -1
	lease, renew, retry := leaseDuration, renewDeadline, retryPeriod
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       server.Options{BindAddress: *metrics},
		HealthProbeBindAddress:        *health,
		LeaderElection:                true,
		LeaderElectionID:              "vernier-allocator",
		LeaderElectionNamespace:       v1alpha1.SystemNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
	})
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := allocator.Setup(ctx, mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
