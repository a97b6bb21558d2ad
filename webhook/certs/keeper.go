// SPDX-License-Identifier: Apache-2.0

// Package certs owns the webhook's certificates. It makes and rotates an
// authority and a serving certificate, and keeps them in one Secret that all
// replicas share. It writes the authority into the webhook's configurations for
// the API server. The Secret is installed empty. Whichever replica comes first fills or
// renews it; its resourceVersion decides between two.
//
// It never writes a file, and never touches anything of the configurations but
// the caBundle.
//
// Why not open-policy-agent/cert-controller: it has the Secret mounted as files.
// A new certificate waits for the kubelet's next sync, and the
// process restarts to take it up. Here it is served from memory as soon as it is made.
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	api "vernier.dev/vernier/api/v1alpha1"
)

const (
	// SecretName is the Secret in the system's namespace.
	SecretName = "vernier-webhook-certs"
	// ConfigurationName is the MutatingWebhookConfiguration for pods, and the
	// ValidatingWebhookConfiguration for workloads.
	ConfigurationName = "vernier-webhook"
)

const (
	// poll is how soon a caBundle that somebody reset is put back: two small
	// reads, for no admission works without it.
	poll = 10 * time.Second
	// retry follows a failure.
	retry = 2 * time.Second
)

// Keeper keeps the certificates. Set Client and Clock before use.
type Keeper struct {
	// Client must not read from a cache.
	Client client.Client
	Clock  clock.Clock

	serving atomic.Pointer[tls.Certificate]
	// failure is that of the last Sync; nil after a success.
	failure atomic.Pointer[error]
}

// GetCertificate is for a tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := k.serving.Load(); cert != nil {
		return cert, nil
	}
	return nil, errors.New("no certificate yet")
}

// Ready is a health check: it fails until a certificate is served that the API
// server has as caBundle, and after it expired.
func (k *Keeper) Ready(*http.Request) error {
	cause := errors.New("the log says what keeps the next one")
	if failure := k.failure.Load(); failure != nil && *failure != nil {
		cause = *failure
	}
	switch cert, err := k.GetCertificate(nil); {
	case err != nil:
		return fmt.Errorf("%w: %w", err, cause)
	case k.Clock.Now().After(cert.Leaf.NotAfter):
		return fmt.Errorf("the certificate expired at %s: %w", cert.Leaf.NotAfter, cause)
	}
	return nil
}

// NeedLeaderElection tells the manager that every replica keeps certificates.
func (k *Keeper) NeedLeaderElection() bool { return false }

// Start keeps the certificates until the context ends. Failures are logged and
// tried again: what is served goes on being served.
func (k *Keeper) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certificates")
	ctx = log.IntoContext(ctx, logger)
	for {
		wait := poll
		err := k.Sync(ctx)
		k.failure.Store(&err)
		if err != nil {
			wait = retry
			if overtaken(err) {
				logger.Info("another replica was faster, reading again", "cause", err.Error())
			} else if ctx.Err() == nil {
				logger.Error(err, "trying again", "after", retry.String())
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.Clock.After(wait):
		}
	}
}

// overtaken reports whether another replica wrote first. A failed test of a JSON
// patch is reported as an invalid object.
func overtaken(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

// Sync does once what is due.
func (k *Keeper) Sync(ctx context.Context) error {
	// The configurations first: if another replica renews after we read the
	// Secret, our write of the older bundle fails on their resourceVersion.
	config := &admissionv1.MutatingWebhookConfiguration{}
	if err := k.Client.Get(ctx, client.ObjectKey{Name: ConfigurationName}, config); err != nil {
		return fmt.Errorf("reading MutatingWebhookConfiguration %s (apply deploy/manifests/admission if it is missing): %w", ConfigurationName, err)
	}
	// Pods are admitted whatever becomes of this one, of which the API server ignores failures.
	// It names the same server.
	workloads := &admissionv1.ValidatingWebhookConfiguration{}
	missing := k.Client.Get(ctx, client.ObjectKey{Name: ConfigurationName}, workloads)
	m, err := k.material(ctx, hosts(config))
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w", api.SystemNamespace, SecretName, err)
	}
	if err := trust(ctx, k.Client, config, m.bundle()); err != nil {
		return fmt.Errorf("writing the caBundle of MutatingWebhookConfiguration %s: %w", ConfigurationName, err)
	}
	k.serving.Store(m.serving)
	if missing != nil {
		return fmt.Errorf("reading ValidatingWebhookConfiguration %s (apply deploy/manifests/admission if it is missing): %w", ConfigurationName, missing)
	}
	if err := trust(ctx, k.Client, workloads, m.bundle()); err != nil {
		return fmt.Errorf("writing the caBundle of ValidatingWebhookConfiguration %s: %w", ConfigurationName, err)
	}
	return nil
}

// material is what the Secret holds, after renewing what is due in it: everything, if the
// Secret is empty, as it is installed.
func (k *Keeper) material(ctx context.Context, hosts []string) (*material, error) {
	secret := &corev1.Secret{}
	err := k.Client.Get(ctx, client.ObjectKey{Namespace: api.SystemNamespace, Name: SecretName}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("it is missing, and the webhook may not create Secrets: apply deploy/manifests/rbac/webhook.yaml, or run helm upgrade: %w", err)
	}
	if err != nil {
		return nil, err
	}
	m := load(secret.Data)
	changed, err := m.renew(k.Clock.Now(), hosts)
	if err != nil || !changed {
		return m, err
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if err := m.store(secret.Data); err != nil {
		return nil, err
	}
	if err := k.Client.Update(ctx, secret); err != nil {
		// On a conflict another replica was first: the next round reads its work.
		return nil, err
	}
	log.FromContext(ctx).Info("renewed the webhook's certificates",
		"authority", m.authorities[0].NotAfter, "serving", m.serving.Leaf.NotAfter, "hosts", hosts)
	return m, nil
}
