// SPDX-License-Identifier: Apache-2.0

// Package karpenter owns the real Karpenter beside a test's API server: its program with the
// provider that creates Node objects and no machine, and the kubelets and node agents of these
// nodes, which a test starts when it wants. It never binds a pod.
package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/cluster/tools"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// NodeClass is what NodePools refer to.
const NodeClass = `
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: gpu}
---
`

// NodePool makes nodes of all instance types, with the taint that the node agent removes. Karpenter counts a
// buffer's pods on nodes every 30 s: if it may remove an empty node sooner, it may remove one that has just started.
const NodePool = NodeClass + `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: gpu}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
      startupTaints: [{key: vernier.dev/agent-not-ready, effect: NoSchedule}]
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 1m, budgets: [{nodes: 100%}]}
`

// InstanceType is what Karpenter may make a node of, as its file of instance types has it.
type InstanceType struct {
	Name             string              `json:"name"`
	Architecture     string              `json:"architecture"`
	OperatingSystems []string            `json:"operatingSystems"`
	Resources        corev1.ResourceList `json:"resources"`
	Offerings        []Offering          `json:"offerings"`
}

// Offering is an instance type's price in a zone.
type Offering struct {
	Price        float64
	Requirements []corev1.NodeSelectorRequirement
}

// GPUs is an instance type with n GPUs of 81408 MiB, called gpu-n. The price follows the number.
func GPUs(n int64) InstanceType {
	amount := func(of int64) resource.Quantity { return *resource.NewQuantity(n*of, resource.DecimalSI) }
	only := func(key, value string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
	}
	return InstanceType{
		Name: fmt.Sprint("gpu-", n), Architecture: "amd64", OperatingSystems: []string{"linux"},
		Resources: corev1.ResourceList{
			corev1.ResourceCPU: amount(16), corev1.ResourceMemory: amount(128 << 30), corev1.ResourcePods: resource.MustParse("110"),
			v1alpha1.ResourceCore: amount(100), v1alpha1.ResourceMemPercent: amount(100), v1alpha1.ResourceMemMiB: amount(81408), v1alpha1.ResourceGPUs: amount(1),
		},
		Offerings: []Offering{{Price: float64(n), Requirements: []corev1.NodeSelectorRequirement{
			only("karpenter.sh/capacity-type", "on-demand"), only(corev1.LabelTopologyZone, "zone-a")}}},
	}
}

// split divides the resources into Vernier's and others.
func (i InstanceType) split() (vernier, others corev1.ResourceList) {
	vernier, others = i.Resources.DeepCopy(), i.Resources.DeepCopy()
	for name := range i.Resources {
		if strings.HasPrefix(string(name), v1alpha1.Prefix) {
			delete(others, name)
		} else {
			delete(vernier, name)
		}
	}
	return vernier, others
}

const overlay = `
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: %s}
spec:
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [%[1]s]}]
  capacity: %s
`

// Karpenter runs beside one API server, seen by an administrator.
type Karpenter struct {
	client.Client
	t     testing.TB
	types []InstanceType
}

// Start runs Karpenter until the test ends, and applies objects to it, such as NodePool. It returns when
// the NodePools are ready. Either its provider knows of Vernier's resources, or NodeOverlays add them.
func Start(t testing.TB, cfg *rest.Config, types []InstanceType, objects string, overlays bool) *Karpenter {
	t.Helper()
	k := &Karpenter{Client: apiserver.Client(t, cfg), t: t, types: types}
	dirs := must.Get(tools.Ensure(t.Context(), os.Stderr, tools.Karpenter))(t)
	must.Get(envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{MaxTime: patience, ErrorIfPathMissing: true,
		Paths: []string{filepath.Join(dirs[0], "manifests", "crds"), filepath.Join(dirs[0], "manifests", "kwok-crds")}}))(t)
	if overlays {
		types = slices.Clone(types)
		for i, one := range types {
			its, all := one.split()
			types[i].Resources = all
			objects += fmt.Sprintf(overlay, one.Name, must.Get(json.Marshal(its))(t))
		}
	}
	k.Apply(objects)
	file := filepath.Join(t.TempDir(), "instance-types.json")
	must.Do(t, os.WriteFile(file, must.Get(json.Marshal(types))(t), 0o644))
	apiserver.Run(t, filepath.Join(dirs[0], "karpenter"), []string{
		"KUBECONFIG=" + apiserver.Kubeconfig(t, cfg), "INSTANCE_TYPES_FILE_PATH=" + file,
		fmt.Sprintf("FEATURE_GATES=CapacityBuffer=true,NodeOverlay=%t", overlays),
		// A port of 0 is any free one. Nobody waits in a test for more pods that may come.
		"DISABLE_LEADER_ELECTION=true", "METRICS_PORT=0", "HEALTH_PROBE_PORT=0", "LOG_LEVEL=debug",
		"BATCH_IDLE_DURATION=50ms", "BATCH_MAX_DURATION=500ms",
	})
	k.Await("Karpenter to take up the NodePools", func() bool {
		pools := k.list("karpenter.sh", "v1", "NodePool")
		return !slices.ContainsFunc(pools, func(p unstructured.Unstructured) bool { return Condition(&p, "Ready").Status != "True" })
	})
	return k
}

// Apply applies objects as `kubectl apply --server-side` does.
func (k *Karpenter) Apply(yaml string) {
	k.t.Helper()
	must.Do(k.t, manifests.Apply(k.t.Context(), k.Client, must.Get(manifests.Parse([]byte(yaml)))(k.t)...))
}

// patience bounds the waits. Karpenter waits for 15 s itself before it removes a node.
const patience = 2 * time.Minute

// Await waits for a condition that must come true.
func (k *Karpenter) Await(what string, done func() bool) {
	k.t.Helper()
	err := wait.PollUntilContextTimeout(k.t.Context(), 100*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		k.t.Fatalf("waiting for %s: %v; NodeClaims: %v", what, err, k.NodeClaims())
	}
}

func (k *Karpenter) list(group, version, kind string) []unstructured.Unstructured {
	k.t.Helper()
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind + "List"})
	must.Do(k.t, k.List(k.t.Context(), all))
	return all.Items
}

// NodeClaims are the sorted instance types of the NodeClaims that are not being deleted; one that has just
// been created has none.
func (k *Karpenter) NodeClaims() (types []string) {
	k.t.Helper()
	for _, claim := range k.list("karpenter.sh", "v1", "NodeClaim") {
		if claim.GetDeletionTimestamp() == nil {
			types = append(types, claim.GetLabels()[corev1.LabelInstanceTypeStable])
		}
	}
	slices.Sort(types)
	return types
}

// Condition is a condition of any object; without it the zero value.
func Condition(obj *unstructured.Unstructured, name string) (c struct{ Status, Reason, Message string }) {
	all, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, one := range all {
		if text, is := one.(map[string]any); is && text["type"] == name {
			c.Status, _ = text["status"].(string)
			c.Reason, _ = text["reason"].(string)
			c.Message, _ = text["message"].(string)
		}
	}
	return c
}
