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
// Why not open-policy-agent/cert-controller: docs/decisions/0009-own-certificates.md.
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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
// server trusts, and after it expired.
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
				logger.Info("Another replica was faster, reading again", "err", err)
			} else if ctx.Err() == nil {
				logger.Error(err, "Cannot keep the certificates; trying again", "after", retry.String())
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
	log.FromContext(ctx).Info("Renewed the webhook's certificates",
		"authority", m.authorities[0].NotAfter, "serving", m.serving.Leaf.NotAfter, "hosts", hosts)
	return m, nil
}

// clientConfigs say where the API server finds the webhooks of a configuration.
func clientConfigs(config client.Object) []*admissionv1.WebhookClientConfig {
	var found []*admissionv1.WebhookClientConfig
	switch c := config.(type) {
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range c.Webhooks {
			found = append(found, &c.Webhooks[i].ClientConfig)
		}
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range c.Webhooks {
			found = append(found, &c.Webhooks[i].ClientConfig)
		}
	}
	return found
}

// hosts are the names under which the API server calls the webhook: the
// certificate is for whatever address the configuration names, so that a webhook
// that runs outside the cluster (a url, not a service) needs no setting of ours.
func hosts(config client.Object) []string {
	var found []string
	for _, cc := range clientConfigs(config) {
		if cc.Service != nil {
			found = append(found, cc.Service.Name+"."+cc.Service.Namespace+".svc")
		}
		if cc.URL != nil {
			if u, err := url.Parse(*cc.URL); err == nil {
				found = append(found, u.Hostname())
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// trust writes the bundle into every webhook of the configuration that has
// another. A patch of that field only: an update would drop what this version's
// types do not know.
func trust(ctx context.Context, c client.Client, config client.Object, bundle []byte) error {
	ops := []jsonpatch.Operation{jsonpatch.NewOperation("test", "/metadata/resourceVersion", config.GetResourceVersion())}
	for i, cc := range clientConfigs(config) {
		if !bytes.Equal(cc.CABundle, bundle) {
			ops = append(ops, jsonpatch.NewOperation("add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle))
		}
	}
	if len(ops) == 1 {
		return nil
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	return c.Patch(ctx, config, client.RawPatch(types.JSONPatchType, patch))
}
