// SPDX-License-Identifier: Apache-2.0

// Package webhook owns the assembly of the admission webhook: the server, its
// certificates and the handler. What it decides is in the packages below it.
//
// It never writes a pod, and holds no state that a restart would lose.
package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/api/access"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/certs"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
)

// Options of the webhook.
type Options struct {
	// Host and Port on which admission is served; an empty host is all addresses.
	Host string
	Port int
	// CertDir holds tls.crt and tls.key, which somebody else made and renews.
	// Empty: the webhook makes its own and writes the caBundle.
	CertDir string
	// MetricsAddress and HealthAddress are host:port, or "0" for none.
	MetricsAddress, HealthAddress string
	// Dialects of other systems that pods may be written in.
	Dialects dialect.Settings
	// Clock for certificates; nil is the real one.
	Clock clock.Clock
}

// New assembles a webhook that runs when the manager is started.
func New(cfg *rest.Config, o Options) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(kubernetes.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	dialects, err := o.Dialects.Set()
	if err != nil {
		return nil, err
	}
	serving := ctrlwebhook.Options{Host: o.Host, Port: o.Port, CertDir: o.CertDir}
	var keeper *certs.Keeper
	if o.CertDir == "" {
		// Not the manager's client: that one reads Secrets from a cache of all.
		direct, err := client.New(cfg, client.Options{Scheme: scheme})
		if err != nil {
			return nil, fmt.Errorf("connecting to the API server: %w", err)
		}
		keeper = &certs.Keeper{Client: direct, Clock: o.Clock}
		if keeper.Clock == nil {
			keeper.Clock = clock.RealClock{}
		}
		serving.TLSOpts = append(serving.TLSOpts, func(c *tls.Config) { c.GetCertificate = keeper.GetCertificate })
	}
	mgr, err := manager.New(cfg, manager.Options{
		Scheme:                 scheme,
		Metrics:                access.Metrics(o.MetricsAddress),
		HealthProbeBindAddress: o.HealthAddress,
		WebhookServer:          ctrlwebhook.NewServer(serving),
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.SliceLedger{}: {Transform: fleet.Slim}}},
	})
	if err != nil {
		return nil, err
	}
	return mgr, assemble(mgr, dialects, keeper)
}

// assemble adds everything to the manager; keeper is nil where the certificates
// are somebody else's.
func assemble(mgr manager.Manager, dialects dialect.Set, keeper *certs.Keeper) error {
	known := &fleet.Fleet{}
	mgr.GetWebhookServer().Register(handler.Path, &admission.Webhook{Handler: handler.New(known, dialects)})
	errs := []error{
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return known.Follow(ctx, mgr.GetCache()) })),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("server", mgr.GetWebhookServer().StartedChecker()),
	}
	if keeper != nil {
		errs = append(errs, mgr.Add(keeper), mgr.AddReadyzCheck("certificate", keeper.Ready))
	}
	return errors.Join(errs...)
}
