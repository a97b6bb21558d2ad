// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
)

// Nodes of the test.
const (
	own   = "own"
	other = "other"
)

// Invariant 1: nobody frees or grants on a node from another one. A node agent's
// token is good for its own node, as is every write that the agent does.
func TestNodePolicy(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/node.yaml", "admission/policy.yaml", "admission/node-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	for _, name := range []string{own, other} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := admin.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), v1alpha1.ResourceCore: resource.MustParse("100")}
		node.Status.Allocatable = node.Status.Capacity
		if err := admin.Status().Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	agent, stray := apiserver.Client(t, withToken(t, cfg, own)), apiserver.Client(t, withToken(t, cfg, ""))

	// The API server takes up policies a moment after they are stored.
	var last error
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 90*time.Second, true, func(ctx context.Context) (bool, error) {
		last = stray.Create(ctx, ledger(own), client.DryRunAll)
		return last != nil && strings.Contains(last.Error(), "vernier-nodes"), nil
	}); err != nil {
		t.Fatalf("the policy is not in force after 90 s: %v", last)
	}

	granted := ledger(own)
	granted.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 100, Mem: 1000}}
	expect(t, "a ledger for another node", agent.Create(t.Context(), ledger(other)), "own node and ledger only, not other: set --node-name to own")
	expect(t, "a ledger with grants", agent.Create(t.Context(), granted), "only the allocator grants")
	expect(t, "a ledger, by a token of no node", stray.Create(t.Context(), ledger(own)), "the token of vernier-node names no node: use the token that the kubelet gives")
	expect(t, "its ledger", agent.Create(t.Context(), ledger(own)), "")
	expect(t, "a ledger, by an administrator", admin.Create(t.Context(), ledger(other)), "")

	release := func(c client.Client, name string) error {
		l := &v1alpha1.SliceLedger{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, l); err != nil {
			return err
		}
		l.Status.Released = append(l.Status.Released, types.UID("uid"))
		return c.Status().Update(t.Context(), l)
	}
	expect(t, "release on another node", release(agent, other), "own node and ledger only, not other")
	expect(t, "release, by a token of no node", release(stray, own), "names no node")
	expect(t, "release on its node", release(agent, own), "")

	for name, tt := range map[string]struct {
		as   client.Client
		node string
		set  string // a merge patch of the node's status
		want string
	}{
		"its capacity":             {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-core":"200"},"allocatable":{"vernier.dev/gpu-core":"200"}}}`, ""},
		"a resource new there":     {agent, own, `{"status":{"capacity":{"vernier.dev/gpu":"256"}}}`, ""},
		"a resource gone":          {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-core":null}}}`, ""},
		"another node's capacity":  {agent, other, `{"status":{"capacity":{"vernier.dev/gpu-core":"200"}}}`, "own node and ledger only, not other"},
		"by a token of no node":    {stray, own, `{"status":{"capacity":{"vernier.dev/gpu-core":"200"}}}`, "names no node"},
		"processors":               {agent, own, `{"status":{"capacity":{"cpu":"9"}}}`, "and nothing else of it"},
		"allocatable processors":   {agent, own, `{"status":{"allocatable":{"cpu":"7"}}}`, "and nothing else of it"},
		"processors gone":          {agent, own, `{"status":{"allocatable":{"cpu":null}}}`, "and nothing else of it"},
		"another vendor's devices": {agent, own, `{"status":{"capacity":{"example.com/gpu":"1"}}}`, "and nothing else of it"},
		"a condition":              {agent, own, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "and nothing else of it"},
		"an address":               {agent, own, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, "and nothing else of it"},
		"a label":                  {agent, own, `{"metadata":{"labels":{"a":"b"}}}`, "and nothing else of it"},
		"an annotation":            {agent, own, `{"metadata":{"annotations":{"a":"b"}}}`, "and nothing else of it"},
		"an administrator":         {admin, other, `{"status":{"capacity":{"cpu":"9"}}}`, ""},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: tt.node}}
		expect(t, name, tt.as.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(tt.set)),
			&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}}), tt.want)
	}
}

func ledger(name string) *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// withToken acts as the node agent with a token of the API server's own making,
// bound to a node unless that is empty.
func withToken(t *testing.T, cfg *rest.Config, node string) *rest.Config {
	t.Helper()
	admin := apiserver.Client(t, cfg)
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		bound := &corev1.Node{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: node}, bound); err != nil {
			t.Fatal(err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: bound.UID}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: v1alpha1.NodeServiceAccount}}
	if err := admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	as := rest.AnonymousClientConfig(cfg)
	as.BearerToken = request.Status.Token
	return as
}

// expect is success where want is empty, else a refusal that says it.
func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: refused: %v", what, err)
	case want != "" && err == nil:
		t.Errorf("%s: let through, want it refused with %q", what, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("%s: refused with %q, want %q", what, err, want)
	}
}
