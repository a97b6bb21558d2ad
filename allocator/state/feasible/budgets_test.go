// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/podstate"
)

// budgetOf covers pods by the label app, which has one of so many values, of which x is the first.
func budgetOf(namespace, name string, values int) *policyv1.PodDisruptionBudget {
	of := []string{"x"}
	for i := range values - 1 {
		of = append(of, fmt.Sprint("v", i))
	}
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: of}}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}
}

func budgetsOf(namespace string, many, values int) (all []*policyv1.PodDisruptionBudget) {
	for i := range many {
		all = append(all, budgetOf(namespace, fmt.Sprintf("b%03d", i), values))
	}
	return all
}

// running is a pod that runs on n0, with the label x.
func running(namespace, name string) *corev1.Pod {
	return gpuPod(name, func(p *corev1.Pod) {
		p.Namespace, p.Labels, p.Spec.NodeName = namespace, map[string]string{"app": "x"}, "n0"
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	})
}

// Beyond a bound the budgets of a namespace count as used up, to evictions and to the scheduler, and
// are not read. Those of another namespace are.
func TestHostileBudgets(t *testing.T) {
	trimmed := budgetOf("ns", "b", 240_000)
	if _, err := podstate.Trim(trimmed); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		beyond  bool
	}{
		"none":                      {nil, false},
		"one of all terms":          {budgetsOf("ns", 1, podstate.MaxSelectorTerms-1), false},
		"one of more":               {budgetsOf("ns", 1, podstate.MaxSelectorTerms), true},
		"one that was not kept":     {[]*policyv1.PodDisruptionBudget{trimmed}, true},
		"as many as there may be":   {budgetsOf("ns", MaxBudgets, 1), false},
		"one more":                  {budgetsOf("ns", MaxBudgets+1, 1), true},
		"few of many terms":         {budgetsOf("ns", MaxBudgetTerms/50, 49), false},
		"one more of as many terms": {budgetsOf("ns", MaxBudgetTerms/50+1, 49), true},
	} {
		t.Run(name, func(t *testing.T) {
			others := budgetOf("other", "b", 1)
			objects := []runtime.Object{others}
			for _, b := range tt.budgets {
				objects = append(objects, b)
			}
			f := newFilters(t, objects...)
			b := f.Budgets("ns")
			budget, ok := b.Of(running("ns", "p"))
			if b.Beyond() != tt.beyond || ok != (!tt.beyond && len(tt.budgets) <= 1) || budget != nil && tt.beyond {
				t.Errorf("beyond: %v, budget %v, evictable: %v", b.Beyond(), budget, ok)
			}
			if tt.beyond && (len(b.all) != 1 || len(b.selectors) != 1) {
				t.Errorf("%d budgets are kept to be read, %d selectors", len(b.all), len(b.selectors))
			}
			if budget, ok := f.Budgets("other").Of(running("other", "p")); !ok || budget == nil || budget.Name != others.Name {
				t.Errorf("of another namespace: %v, %v", budget, ok)
			}

			f.SetNode(gpuNode("n0"))
			fills := running("ns", "p")
			request(corev1.ResourceCPU, gpuNode("n0").Status.Allocatable.Cpu().String())(fills)
			if _, err := f.Count(fills, "n0"); err != nil {
				t.Fatal(err)
			}
			asks := gpuPod("asks", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](10) }, request(corev1.ResourceCPU, "1"))
			cycle, err := f.Start(t.Context(), asks)
			if err != nil {
				t.Fatal(err)
			}
			harm, would, err := cycle.Preempts(t.Context(), "n0", func(*corev1.Pod) bool { return true })
			if err != nil || !would || (harm.Violations == 1) != tt.beyond {
				t.Errorf("harm %+v, %v: %v", harm, would, err)
			}
		})
	}
}

// A selector is parsed once for a version of its budget, however often it is asked for, and a change
// of one has no other parsed again.
func TestBudgets_AreParsedOnce(t *testing.T) {
	f := newFilters(t, budgetOf("ns", "a", 3), budgetOf("ns", "b", 3), budgetOf("other", "a", 3))
	parsed := func(b *Budgets, i int) uintptr { return reflect.ValueOf(b.selectors[i]).Pointer() }
	before, other := f.Budgets("ns"), f.Budgets("other")
	if f.Budgets("ns") != before {
		t.Error("read again although nothing has changed")
	}
	f.budgets.set(budgetOf("ns", "b", 4))
	after := f.Budgets("ns")
	if after == before || parsed(after, 0) != parsed(before, 0) || parsed(after, 1) == parsed(before, 1) || f.Budgets("other") != other {
		t.Error("want b alone to be parsed again")
	}
	f.budgets.drop(budgetOf("ns", "b", 4))
	f.budgets.drop(budgetOf("other", "a", 3))
	f.budgets.drop(budgetOf("never", "a", 3))
	if got := f.Budgets("ns").Covering(running("ns", "p")); len(got) != 1 || got[0].Name != "a" || len(f.Budgets("other").all) != 0 || len(f.budgets.in) != 1 {
		t.Errorf("%v are left, of %d namespaces", got, len(f.budgets.in))
	}
}

// The plugin that is given informers that never start reads their objects for scores alone: none of
// the default constraints refuses a node.
func TestFilters_DoNotWatchWorkloads(t *testing.T) {
	f := newFilters(t)
	for _, kind := range f.Kinds() {
		if slices.Contains([]string{"Service", "ReplicationController", "ReplicaSet", "StatefulSet"}, kind.Elem().Name()) {
			t.Errorf("watches %v", kind)
		}
	}
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range defaults.Profiles[0].PluginConfig {
		args, is := c.Args.(*config.PodTopologySpreadArgs)
		if is && (args.DefaultingType != config.SystemDefaulting || len(args.DefaultConstraints) > 0) {
			t.Errorf("default constraints %v", args)
		}
	}
	if text := BeyondBudgets("ns"); !strings.Contains(text, "namespace ns has more than 100 PodDisruptionBudgets") {
		t.Errorf("says %q", text)
	}
}
