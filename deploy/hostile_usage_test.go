// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// A node agent's stolen token writes the account of its own node, within its bounds, and no
// other's. It deletes none.
func TestHostileUsageToken(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/node.yaml", "admission/node-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	for _, name := range []string{own, other} {
		must.Do(t, admin.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	agent := apiserver.Client(t, stolen(t, cfg, v1alpha1.NodeServiceAccount, nodeOf(t, admin, own)))
	stray := apiserver.Client(t, stolen(t, cfg, v1alpha1.NodeServiceAccount, nil))
	account := func(name string) *v1alpha1.SliceUsage {
		return &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: name, UID: nodeOf(t, admin, name).UID},
		}}}
	}
	orphan := account(own)
	orphan.OwnerReferences = nil
	expect(t, "an account for another node", agent.Create(t.Context(), account(other)), "own node, ledger and account only, not other: set --node-name to own")
	expect(t, "an account, by a token of no node", stray.Create(t.Context(), account(own)), "the token of vernier-node names no node")
	expect(t, "an account that is nobody's", agent.Create(t.Context(), orphan), "metadata.ownerReferences: a node agent's ledger or account must have one owner")
	expect(t, "its account", agent.Create(t.Context(), account(own)), "")
	expect(t, "an account, by an administrator", admin.Create(t.Context(), account(other)), "")

	count := func(c client.Client, name string, set func(*v1alpha1.SliceUsageStatus)) error {
		u := &v1alpha1.SliceUsage{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, u); err != nil {
			return err
		}
		u.Status = v1alpha1.SliceUsageStatus{Since: metav1.Now(), Through: metav1.Now()}
		set(&u.Status)
		return c.Status().Update(t.Context(), u)
	}
	full := func(s *v1alpha1.SliceUsageStatus) {
		fill(s, v1alpha1.MaxUsageHours, v1alpha1.MaxUsageEntries/v1alpha1.MaxUsageHours)
		s.Containers = containers(v1alpha1.MaxUsageContainers, v1alpha1.MaxUsageContainerBytes/v1alpha1.MaxUsageContainers)
	}
	expect(t, "another node's account", count(agent, other, full), "own node, ledger and account only, not other")
	expect(t, "its account, by a token of no node", count(stray, own, full), "names no node")
	expect(t, "its account, full", count(agent, own, full), "")
	expect(t, "an hour more", count(agent, own, func(s *v1alpha1.SliceUsageStatus) { fill(s, v1alpha1.MaxUsageHours+1, 1) }), "status.hours")
	expect(t, "namespaces without a bound", count(agent, own, func(s *v1alpha1.SliceUsageStatus) { fill(s, 1, 1000) }), "status.hours[0].models[0].granted")
	expect(t, "less than nothing", count(agent, own, func(s *v1alpha1.SliceUsageStatus) {
		fill(s, 1, 1)
		s.Hours[0].Models[0].Granted[0].Core = -1
	}), "should be greater than or equal to 0")

	expect(t, "more containers", count(agent, own, func(s *v1alpha1.SliceUsageStatus) { s.Containers = containers(v1alpha1.MaxUsageContainers+1, 1) }), "status.containers")
	expect(t, "use without a bound", count(agent, own, func(s *v1alpha1.SliceUsageStatus) { s.Containers = containers(1, 4097) }), "status.containers[0].use")

	u := account(own)
	must.Do(t, admin.Get(t.Context(), client.ObjectKeyFromObject(u), u))
	if text := must.Get(json.Marshal(u))(t); len(text) > 1<<20 {
		t.Errorf("a full account has %d bytes", len(text))
	} else {
		t.Logf("a full account: %d KiB", len(text)>>10)
	}
	u.Labels = map[string]string{"a": "b"}
	expect(t, "a label of its account", agent.Update(t.Context(), u), "forbidden")
	expect(t, "its account's end", agent.Delete(t.Context(), u), "forbidden")
	expect(t, "everybody's accounts", agent.List(t.Context(), &v1alpha1.SliceUsageList{}), "forbidden")
}

// containers are entries whose documents have so many bytes.
func containers(n, bytes int) (all []v1alpha1.ContainerUse) {
	for range n {
		all = append(all, v1alpha1.ContainerUse{Namespace: strings.Repeat("n", 63), Workload: "Deployment/" + strings.Repeat("d", 253),
			Container: strings.Repeat("c", 63), Model: "NVIDIA H100 80GB HBM3", Use: strings.Repeat("u", bytes)})
	}
	return all
}

// fill makes an account of so many hours, and of so many namespaces in each.
func fill(s *v1alpha1.SliceUsageStatus, hours, namespaces int) {
	model := func(n int) v1alpha1.ModelUsage {
		m := v1alpha1.ModelUsage{Model: "NVIDIA H100 80GB HBM3", Total: v1alpha1.DeviceTime{Core: 8 * v1alpha1.PerGPUHour, Mem: 1 << 40}}
		m.Free = m.Total
		for i := range n {
			m.Granted = append(m.Granted, v1alpha1.NamespaceUsage{
				Namespace: fmt.Sprint("a-namespace-of-usual-length-", i), Kind: v1alpha1.UsageGuaranteed,
				DeviceTime: v1alpha1.DeviceTime{Core: v1alpha1.PerGPUHour, Mem: 1 << 36}, UsedMilliseconds: ptr.To(int64(3600_000)),
			})
		}
		return m
	}
	for i := range hours {
		s.Hours = append(s.Hours, v1alpha1.UsageHour{Start: metav1.NewTime(time.Unix(int64(i)*3600, 0)), Models: []v1alpha1.ModelUsage{model(namespaces)}})
	}
	s.Sums = []v1alpha1.ModelUsage{model(min(namespaces*hours, v1alpha1.MaxUsageSumEntries))}
}
