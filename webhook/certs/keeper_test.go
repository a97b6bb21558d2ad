// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

func configuration() *admissionv1.MutatingWebhookConfiguration {
	url := "https://10.0.0.1:9443/x"
	return &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName},
		Webhooks: []admissionv1.MutatingWebhook{
			{Name: "a", ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
				Name: "vernier-webhook", Namespace: api.SystemNamespace}}},
			{Name: "b", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}},
		},
	}
}

// workloads is the configuration that warns.
func workloads() *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName},
		Webhooks: []admissionv1.ValidatingWebhook{{Name: "c", ClientConfig: admissionv1.WebhookClientConfig{
			Service: &admissionv1.ServiceReference{Name: "vernier-webhook", Namespace: api.SystemNamespace}}}},
	}
}

// secret is as it is installed.
func secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: api.SystemNamespace, Name: SecretName}, Type: corev1.SecretTypeOpaque}
}

func bundles(t *testing.T, c client.Client) [][]byte {
	t.Helper()
	config := &admissionv1.MutatingWebhookConfiguration{}
	must.Do(t, c.Get(t.Context(), client.ObjectKey{Name: ConfigurationName}, config))
	warns := &admissionv1.ValidatingWebhookConfiguration{}
	must.Do(t, c.Get(t.Context(), client.ObjectKey{Name: ConfigurationName}, warns))
	return [][]byte{config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[1].ClientConfig.CABundle, warns.Webhooks[0].ClientConfig.CABundle}
}

// check asserts that what the keeper serves is trusted by what the API server
// was told, under every name.
func check(t *testing.T, k *Keeper, c client.Client) {
	t.Helper()
	must.Do(t, k.Ready(nil))
	for _, bundle := range bundles(t, c) {
		must.Report(t, accepts(t, bundle, &material{serving: k.serving.Load()}, k.Clock.Now()))
	}
}

func TestSync(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	c := fake.NewClientBuilder().WithObjects(configuration(), workloads(), secret()).Build()
	first, second := &Keeper{Client: c, Clock: clock}, &Keeper{Client: c, Clock: clock}
	if first.Ready(nil) == nil {
		t.Error("ready before anything was done")
	}
	for _, k := range []*Keeper{first, second} {
		must.Do(t, k.Sync(t.Context()))
		check(t, k, c)
	}
	if !bytes.Equal(first.serving.Load().Certificate[0], second.serving.Load().Certificate[0]) {
		t.Error("the replicas serve different certificates")
	}

	// Somebody applies the manifest again.
	must.Do(t, c.Update(t.Context(), reset(t, c)))
	must.Do(t, first.Sync(t.Context()))
	check(t, first, c)

	// Rotation, with the second replica behind.
	old := first.serving.Load()
	clock.Step(authorityLife * 3 / 4)
	for range 2 {
		must.Do(t, first.Sync(t.Context()))
		check(t, first, c)
		clock.Step(2 * settle)
	}
	if bytes.Equal(old.Certificate[0], first.serving.Load().Certificate[0]) {
		t.Error("the certificate was not renewed")
	}
	must.Do(t, second.Sync(t.Context()))
	check(t, second, c)
	clock.Step(servingLife)
	if second.Ready(nil) == nil {
		t.Error("ready with an expired certificate")
	}
}

func reset(t *testing.T, c client.Client) *admissionv1.MutatingWebhookConfiguration {
	t.Helper()
	config := &admissionv1.MutatingWebhookConfiguration{}
	must.Do(t, c.Get(t.Context(), client.ObjectKey{Name: ConfigurationName}, config))
	config.Webhooks = configuration().Webhooks
	return config
}

// Whatever one replica does between another's read and write, both end up with
// the same certificate, and the API server trusts it.
func TestRace(t *testing.T) {
	for name, at := range map[string]string{"an empty Secret": "fill", "patch": "patch", "update": "update"} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(start)
			plain := fake.NewClientBuilder().WithObjects(configuration(), workloads(), secret()).Build()
			fast := &Keeper{Client: plain, Clock: clock}
			if at == "update" {
				must.Do(t, fast.Sync(t.Context()))
				clock.Step(authorityLife * 3 / 4)
			}
			overtake := func(ctx context.Context, where string) error {
				if where != at {
					return nil
				}
				at = ""
				return fast.Sync(ctx)
			}
			slow := &Keeper{Clock: clock, Client: interceptor.NewClient(plain, interceptor.Funcs{
				Update: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
					return errors.Join(overtake(ctx, "fill"), overtake(ctx, "update"), c.Update(ctx, obj, o...))
				},
				Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, o ...client.PatchOption) error {
					if err := overtake(ctx, "patch"); err != nil {
						return err
					}
					return c.Patch(ctx, obj, p, o...)
				},
			})}
			if err := slow.Sync(t.Context()); err == nil {
				t.Error("the slow replica did not notice")
			}
			must.Do(t, slow.Sync(t.Context()))
			if at == "" {
				check(t, fast, plain)
				check(t, slow, plain)
			} else {
				t.Error("nobody was overtaken: the test tests nothing")
			}
			if !bytes.Equal(fast.serving.Load().Certificate[0], slow.serving.Load().Certificate[0]) {
				t.Error("the replicas serve different certificates")
			}
		})
	}
}

// A failure leaves what is served in place, and Start tries again.
func TestStart(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	plain := fake.NewClientBuilder().WithObjects(configuration(), workloads(), secret()).Build()
	down := errors.New("the API server is away")
	reads := make(chan struct{})
	c := interceptor.NewClient(plain, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, o ...client.GetOption) error {
			if _, config := obj.(*admissionv1.MutatingWebhookConfiguration); config {
				reads <- struct{}{}
				if down != nil {
					return down
				}
			}
			return c.Get(ctx, key, obj, o...)
		},
	})
	k := &Keeper{Client: c, Clock: clock}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- k.Start(ctx) }()

	// The channel orders this test after the read and before its answer is used.
	<-reads
	await(t, clock)
	if k.Ready(nil) == nil {
		t.Error("ready without a certificate")
	}
	down = nil
	clock.Step(retry)
	<-reads
	await(t, clock)
	check(t, k, plain)

	down = errors.New("away again")
	clock.Step(poll)
	<-reads
	await(t, clock)
	if err := k.Ready(nil); err != nil {
		t.Errorf("a failure took the certificate away: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// await blocks until Start sleeps.
func await(t *testing.T, clock *clocktesting.FakeClock) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 90*time.Second, true,
		func(context.Context) (bool, error) { return clock.HasWaiters(), nil })
	if err != nil {
		t.Fatal("Start does not come to rest")
	}
}

func TestMissingConfiguration(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(secret()).Build()
	k := &Keeper{Client: c, Clock: clocktesting.NewFakeClock(start)}
	err := k.Sync(t.Context())
	if err == nil || !strings.Contains(err.Error(), "apply deploy/manifests/admission") {
		t.Errorf("got %v, want the remedy", err)
	}
	left := &corev1.Secret{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret()), left); err != nil || len(left.Data) > 0 {
		t.Errorf("certificates were made for hosts that are not known: %v %v", left.Data, err)
	}
}

// Without the configuration that warns pods are admitted all the same.
func TestMissingWorkloads(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(configuration(), secret()).Build()
	k := &Keeper{Client: c, Clock: clocktesting.NewFakeClock(start)}
	if err := k.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "reading ValidatingWebhookConfiguration vernier-webhook (apply deploy/manifests/admission") {
		t.Errorf("got %v, want the remedy", err)
	}
	must.Do(t, c.Create(t.Context(), workloads()))
	trusted := bundles(t, c)
	must.Report(t, errors.Join(k.Ready(nil), accepts(t, trusted[0], &material{serving: k.serving.Load()}, k.Clock.Now())))
	if len(trusted[2]) > 0 {
		t.Error("the other configuration is trusted before it was read")
	}
	must.Do(t, k.Sync(t.Context()))
	check(t, k, c)
}

// The webhook may not create Secrets: its own is installed with it. Without it the replica
// is not ready, and says what to do; with it, it goes on.
func TestMissingSecret(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	created := 0
	c := interceptor.NewClient(fake.NewClientBuilder().WithObjects(configuration(), workloads()).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
			created++
			return c.Create(ctx, obj, o...)
		},
	})
	k := &Keeper{Client: c, Clock: clock}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- k.Start(ctx) }()
	await(t, clock)
	const remedy = "secret vernier-system/vernier-webhook-certs: it is missing, and the webhook may not create Secrets: apply deploy/manifests/rbac/webhook.yaml"
	if err := k.Ready(nil); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("ready says %v, want %q", err, remedy)
	}
	if created > 0 {
		t.Error("the keeper tried to create it")
	}
	must.Do(t, c.Create(t.Context(), secret()))
	clock.Step(retry)
	await(t, clock)
	check(t, k, c)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
