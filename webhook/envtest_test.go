// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook"
)

// Namespaces of these tests.
const (
	enabled  = "enabled"
	disabled = "disabled"
	other    = "other"
)

func namespaces(t *testing.T, c client.Client) {
	t.Helper()
	for name, labels := range map[string]map[string]string{
		enabled: {api.LabelInject: api.LabelInjectEnabled}, disabled: {api.LabelInject: "no"}, other: nil,
	} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		must.Do(t, c.Create(t.Context(), ns))
	}
}

// plain asks for nothing.
func plain(namespace string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

// asking asks for 30 percent, as a user writes it.
func asking(namespace string) *corev1.Pod {
	pod := plain(namespace)
	pod.Spec.Containers[0].Name = "train"
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ResourceCore: resource.MustParse("30")}
	return pod
}

// longest is how many seconds the API server waits for a webhook at the most: where the
// machine has no time for the one that runs in the test, that is no matter of the test's.
const longest = 30

// install applies the webhook's configurations of deploy/, with an address on
// this machine in place of the Service.
func install(t *testing.T, cfg *rest.Config, address string) {
	t.Helper()
	configure(t, cfg, address, apiserver.Manifests(t, "admission/webhook.yaml"))
}

func configure(t *testing.T, cfg *rest.Config, address string, objects []*unstructured.Unstructured) {
	t.Helper()
	c := apiserver.Client(t, cfg)
	for _, obj := range objects {
		hook := obj.Object["webhooks"].([]any)[0].(map[string]any)
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		must.Do(t, err)
		hook["clientConfig"] = map[string]any{"url": "https://" + address + path}
		hook["timeoutSeconds"] = int64(longest)
		must.Do(t, c.Create(t.Context(), obj))
	}
}

// address is one that nothing listens on, nor will by chance: one that has been listened on
// and left may be somebody else's the next moment. It is on an address of the loopback that
// only this test knows, and no port that the kernel gives to those that ask for any.
func address(t *testing.T) string {
	t.Helper()
	at := fmt.Sprintf("127.%d.%d.%d:%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254), 10_000+rand.IntN(20_000))
	l := must.Get(net.Listen("tcp", at))(t)
	defer l.Close()
	return at
}

// start runs a replica with the rights of its service account until the test
// ends. The options' addresses are set here.
func start(t *testing.T, cfg *rest.Config, address string, o webhook.Options) {
	t.Helper()
	host, digits, err := net.SplitHostPort(address)
	must.Do(t, err)
	port := must.Get(strconv.Atoi(digits))(t)
	o.Host, o.Port, o.MetricsAddress, o.HealthAddress = host, port, "0", "0"
	mgr := must.Get(webhook.New(apiserver.AsServiceAccount(cfg, api.WebhookServiceAccount), o))(t)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the webhook ended with: %v", err)
		}
	})
}

// served is the certificate that a replica serves; nil where it serves none.
func served(address string) []byte {
	dialer := &net.Dialer{Timeout: time.Minute}
	conn, err := tls.DialWithDialer(dialer, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return nil
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Raw
}

// await polls until the condition holds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 90*time.Second, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("after 90 s still not: %s", what)
	}
}
