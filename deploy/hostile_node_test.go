// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// Nodes of the test.
const (
	own   = "own"
	other = "other"
)

// Invariant 1: nobody frees or grants on a node from another one. A node agent's
// stolen token is good for its own node, as is every write that the agent does.
func TestHostileNodeToken(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/node.yaml", "admission/policy.yaml", "admission/node-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	for _, name := range []string{own, other} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must.Do(t, admin.Create(t.Context(), node))
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), v1alpha1.ResourceCore: resource.MustParse("100")}
		node.Status.Allocatable = node.Status.Capacity
		must.Do(t, admin.Status().Update(t.Context(), node))
	}
	agent := apiserver.Client(t, stolen(t, cfg, v1alpha1.NodeServiceAccount, nodeOf(t, admin, own)))
	stray := apiserver.Client(t, stolen(t, cfg, v1alpha1.NodeServiceAccount, nil))
	ledger := func(name string) *v1alpha1.SliceLedger {
		return ownedBy(name, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: name, UID: nodeOf(t, admin, name).UID})
	}

	expect(t, "a class", agent.Create(t.Context(), gold()), "forbidden")
	granted := ledger(own)
	granted.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 100, Mem: 1000}}
	expect(t, "a ledger for another node", agent.Create(t.Context(), ledger(other)), "own node, ledger and account only, not other: set --node-name to own")
	expect(t, "a ledger with grants", agent.Create(t.Context(), granted), "only the allocator grants")
	expect(t, "a ledger, by a token of no node", stray.Create(t.Context(), ledger(own)), "the token of vernier-node names no node: use the token that the kubelet gives")
	for name, owners := range map[string][]metav1.OwnerReference{
		"nobody's":            nil,
		"another node's":      ledger(other).OwnerReferences,
		"its own and another": append(ledger(own).OwnerReferences, ledger(other).OwnerReferences...),
		"a Pod's":             {{APIVersion: "v1", Kind: "Pod", Name: own, UID: "u"}},
	} {
		expect(t, "a ledger that is "+name, agent.Create(t.Context(), ownedBy(own, owners...), client.DryRunAll), "metadata.ownerReferences: a node agent's ledger or account must have one owner")
	}
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
	expect(t, "release on another node", release(agent, other), "own node, ledger and account only, not other")
	expect(t, "release, by a token of no node", release(stray, own), "names no node")
	expect(t, "release on its node", release(agent, own), "")
	reachable := func(c client.Client, name string) error {
		l := &v1alpha1.SliceLedger{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, l); err != nil {
			return err
		}
		meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionTrue, Reason: "Me"})
		return c.Status().Update(t.Context(), l)
	}
	expect(t, "its own reachability", reachable(agent, own), "status.conditions[AgentReachable]: the allocator writes it")
	expect(t, "reachability, by an administrator", reachable(admin, own), "")
	expect(t, "its status beside that", release(agent, own), "")
	size := func(mem v1alpha1.MiB, devices int) error {
		l := &v1alpha1.SliceLedger{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: own}, l); err != nil {
			return err
		}
		l.Status.Devices = nil
		for i := range devices {
			l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: fmt.Sprint("GPU-", i), Mem: mem})
		}
		return agent.Status().Update(t.Context(), l)
	}
	expect(t, "a device of 4 TiB", size(4<<20, v1alpha1.MaxDevices), "")
	expect(t, "a larger one", size(4<<20+1, 1), "status.devices[0].mem")
	expect(t, "a device more", size(1, v1alpha1.MaxDevices+1), "status.devices")
	t.Run("events", func(t *testing.T) { hostileEvents(t, admin, agent, stray) })

	for name, tt := range map[string]struct {
		as   client.Client
		node string
		set  string // a merge patch of the node's status
		want string
	}{
		"its capacity":             {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-core":"200"},"allocatable":{"vernier.dev/gpu-core":"200"}}}`, ""},
		"a resource new there":     {agent, own, `{"status":{"capacity":{"vernier.dev/gpu":"256"}}}`, ""},
		"as much as there can be":  {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-core":"6400","vernier.dev/gpu-mem":"6400","vernier.dev/gpu":"16384","vernier.dev/gpu-mem-mib":"268435456"}}}`, ""},
		"more compute":             {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-core":"6401"}}}`, "may announce what 64 devices have at the most"},
		"more memory":              {agent, own, `{"status":{"allocatable":{"vernier.dev/gpu-mem-mib":"268435457"}}}`, "may announce what 64 devices have at the most"},
		"more slices":              {agent, own, `{"status":{"capacity":{"vernier.dev/gpu":"1e18"}}}`, "may announce what 64 devices have at the most"},
		"units of a class":         {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-gold":"6400"},"allocatable":{"vernier.dev/gpu-gold":"6400"}}}`, ""},
		"more units":               {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-gold":"6401"}}}`, "may announce what 64 devices have at the most"},
		"more free units":          {agent, own, `{"status":{"allocatable":{"vernier.dev/gpu-gold":"1e9"}}}`, "may announce what 64 devices have at the most"},
		"a resource gone":          {agent, own, `{"status":{"capacity":{"vernier.dev/gpu-core":null}}}`, ""},
		"another node's capacity":  {agent, other, `{"status":{"capacity":{"vernier.dev/gpu-core":"200"}}}`, "own node, ledger and account only, not other"},
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

// hostileEvents writes events as the agent does and as others would.
func hostileEvents(t *testing.T, admin, agent, stray client.Client) {
	event := func(controller, instance string) *eventsv1.Event {
		return &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e-", Namespace: metav1.NamespaceDefault}, EventTime: metav1.NowMicro(),
			ReportingController: controller, ReportingInstance: instance, Action: "Enforcing", Reason: "Reason", Type: corev1.EventTypeWarning,
			Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: "p"},
		}
	}
	const refused = "a node agent may write its own events only: set them to vernier-node and"
	agents := v1alpha1.NodeServiceAccount
	expect(t, "an event of the scheduler", agent.Create(t.Context(), event("default-scheduler", own), client.DryRunAll), refused)
	expect(t, "an event of another agent", agent.Create(t.Context(), event(agents, other), client.DryRunAll), refused+` "own"`)
	expect(t, "an event, by a token of no node", stray.Create(t.Context(), event(agents, own), client.DryRunAll), refused)
	series := client.RawPatch(types.MergePatchType, []byte(`{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`))
	mine, theirs := event(agents, own), event(agents, other)
	expect(t, "its event", agent.Create(t.Context(), mine), "")
	expect(t, "an event, by an administrator", admin.Create(t.Context(), theirs), "")
	expect(t, "its event once more", agent.Patch(t.Context(), mine, series), "")
	expect(t, "another's event", agent.Patch(t.Context(), theirs, series), refused)
}

// ownedBy is a ledger as an agent creates it, but for its owners.
func ownedBy(name string, owners ...metav1.OwnerReference) *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
}

// nodeOf is the Node of that name.
func nodeOf(t *testing.T, admin client.Client, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	must.Do(t, admin.Get(t.Context(), client.ObjectKey{Name: name}, node))
	return node
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
