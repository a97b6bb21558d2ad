// SPDX-License-Identifier: Apache-2.0

// Package webhook owns the assembly of the admission webhook: the server, its
// certificates and the handler. Its decisions are in the packages below it.
//
// It never writes a pod, and holds no state that a restart would lose.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

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
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/certs"
	"vernier.dev/vernier/webhook/conditions"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
	"vernier.dev/vernier/webhook/intake"
	"vernier.dev/vernier/webhook/podtemplate"
	"vernier.dev/vernier/webhook/start"
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
	podtemplate.Settings
	// Clock for certificates; nil is the real one.
	Clock clock.Clock
}

// New assembles a webhook that runs when the manager is started.
func New(cfg *rest.Config, o Options) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(kubernetes.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	rules, err := o.Rules()
	if err != nil {
		return nil, err
	}
	serving := &server{
		Server: ctrlwebhook.NewServer(ctrlwebhook.Options{}), address: net.JoinHostPort(o.Host, strconv.Itoa(o.Port)),
		certDir: o.CertDir, intake: intake.New(intake.Default),
	}
	// Not the manager's client: that one reads from a cache of all, Secrets too.
	direct, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	var keeper *certs.Keeper
	if o.CertDir == "" {
		keeper = &certs.Keeper{Client: direct, Clock: cmp.Or[clock.Clock](o.Clock, clock.RealClock{})}
		serving.certificate = keeper.GetCertificate
	}
	mgr, err := manager.New(cfg, manager.Options{
		Scheme:                 scheme,
		Metrics:                access.Metrics(o.MetricsAddress),
		HealthProbeBindAddress: o.HealthAddress,
		WebhookServer:          serving,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.SliceLedger{}: {Transform: fleet.Slim}, &v1alpha1.SliceAdvice{}: {Transform: start.Slim}}},
	})
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(assemble(mgr, rules, keeper), mgr.Add(&conditions.Watcher{Client: direct, Dialects: rules.Dialects}))
}

// assemble adds everything to the manager; keeper is nil where the certificates
// are somebody else's.
func assemble(mgr manager.Manager, rules podtemplate.Rules, keeper *certs.Keeper) error {
	known := &fleet.Fleet{}
	rules.Classes, rules.Advice = &classes.Set{}, &start.Advice{}
	pods := podtemplate.New(known, rules)
	mgr.GetWebhookServer().Register(handler.Path, &admission.Webhook{Handler: handler.Pods(pods)})
	mgr.GetWebhookServer().Register(handler.WorkloadsPath, &admission.Webhook{Handler: handler.Workloads(pods)})
	mgr.GetWebhookServer().Register(handler.ResizesPath, &admission.Webhook{Handler: handler.Resizes()})
	errs := []error{
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return known.Follow(ctx, mgr.GetCache()) })),
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			return rules.Classes.Follow(ctx, mgr.GetCache(), func() {})
		})),
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			if err := rules.Advice.Follow(ctx, mgr.GetCache()); err != nil && ctx.Err() == nil {
				mgr.GetLogger().Error(err, "Cannot follow advice; pods start with all that they request")
			}
			return nil // admission goes on without
		})),
		mgr.AddReadyzCheck("classes", func(*http.Request) error {
			if !rules.Classes.HasSynced() {
				return errors.New("the GPU classes are not read yet")
			}
			return nil
		}),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("server", mgr.GetWebhookServer().StartedChecker()),
	}
	if keeper != nil {
		errs = append(errs, mgr.Add(keeper), mgr.AddReadyzCheck("certificate", keeper.Ready))
	}
	return errors.Join(errs...)
}
