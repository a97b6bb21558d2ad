// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
	"vernier.dev/vernier/test/must"
)

const (
	modelA = "NVIDIA A100-SXM4-80GB"
	modelT = "Tesla T4"
)

// accounts are those of two nodes. That of gpu-2 ends three hours ago and has lost its first hours.
func accounts() []client.Object {
	gib := v1alpha1.PerGiBHour
	granted := func(namespace string, core v1alpha1.PercentSeconds, mem v1alpha1.MiBSeconds, used *int64) v1alpha1.NamespaceUsage {
		return v1alpha1.NamespaceUsage{Namespace: namespace, Kind: v1alpha1.UsageGuaranteed, DeviceTime: v1alpha1.DeviceTime{Core: core, Mem: mem}, UsedMilliseconds: used}
	}
	first := &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	first.Status = v1alpha1.SliceUsageStatus{Since: metav1.NewTime(now.Add(-20 * time.Hour)), Through: metav1.NewTime(now.Add(-15 * time.Minute))}
	for i := range 20 {
		first.Status.Hours = append(first.Status.Hours, v1alpha1.UsageHour{Start: metav1.NewTime(now.Add(time.Duration(i-20) * time.Hour)), Models: []v1alpha1.ModelUsage{{
			Model: modelA, Total: v1alpha1.DeviceTime{Core: 2 * v1alpha1.PerGPUHour, Mem: 160 * gib},
			Free: v1alpha1.DeviceTime{Core: v1alpha1.PerGPUHour, Mem: 100 * gib}, Unavailable: v1alpha1.DeviceTime{Core: 90_000, Mem: 10 * gib},
			Granted: []v1alpha1.NamespaceUsage{granted("team-a", 180_001, 40*gib, ptr.To(int64(1_500_000))), granted("team-b", 89_999, 10*gib, nil)},
		}}})
	}
	second := &v1alpha1.SliceUsage{ObjectMeta: metav1.ObjectMeta{Name: "gpu-2"}}
	second.Status = v1alpha1.SliceUsageStatus{Since: metav1.NewTime(now.Add(-2000 * time.Hour)), Through: metav1.NewTime(now.Add(-3 * time.Hour))}
	for _, ago := range []time.Duration{5, 4} {
		second.Status.Hours = append(second.Status.Hours, v1alpha1.UsageHour{Start: metav1.NewTime(now.Add(-ago * time.Hour)), Models: []v1alpha1.ModelUsage{{
			Model: modelT, Total: v1alpha1.DeviceTime{Core: v1alpha1.PerGPUHour, Mem: 15 * gib},
			Free: v1alpha1.DeviceTime{Mem: 15*gib - 1_000_000}, Unknown: v1alpha1.DeviceTime{Core: 60_000},
			Granted: []v1alpha1.NamespaceUsage{granted("*", 100_000, 0, nil), granted("team-a", 200_000, 1_000_000, ptr.To(int64(1)))},
		}}})
	}
	return []client.Object{first, second}
}

func TestUsage(t *testing.T) {
	for name, args := range map[string]string{
		"usage":           "usage -A",
		"usage-wide":      "usage -A -o wide",
		"usage-since":     "usage -A --since 4h",
		"usage-model":     "usage --by model --since 2d --prices A100=2.5,t4=0.35",
		"usage-namespace": "usage -n team-b --prices NVIDIA=1,A100-SXM4=2",
		"usage.csv":       "usage -A -o csv --prices A100=2.5",
		"usage.json":      "usage -A -o json --prices A100=2.5",
		"usage.yaml":      "usage -n team-b -o yaml",
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := run(t, fakeClient(t, accounts()...), args)
			must.Do(t, err)
			golden(t, name, args, out+errOut)
		})
	}
}

// The rows of a model add up to its total, in every form and whatever is shown.
func TestUsageAddsUp(t *testing.T) {
	for _, args := range []string{"usage -A", "usage -n team-a", "usage -n none", "usage --by model", "usage -A --since 4h", "usage -A --since 90d"} {
		out, _, err := run(t, fakeClient(t, accounts()...), args+" -o json --prices A100=3,T4=1")
		must.Do(t, err)
		var doc view.UsageReport
		must.Do(t, json.Unmarshal([]byte(out), &doc))
		sums, totals := map[string][2]int64{}, 0
		for _, r := range doc.Items {
			s := sums[r.Model]
			switch r.What {
			case view.UsageTotal:
				if totals++; s != [2]int64{int64(r.Core), int64(r.Mem)} {
					t.Errorf("%s: the rows of %s add up to %v, the total is %+v", args, r.Model, s, r)
				}
			case view.UsageSum:
			default:
				sums[r.Model] = [2]int64{s[0] + int64(r.Core), s[1] + int64(r.Mem)}
			}
		}
		if totals == 0 {
			t.Errorf("%s: no total in %s", args, out)
		}
		table := must.Get(csv.NewReader(strings.NewReader(stdout(t, args+" -o csv --prices A100=3,T4=1"))).ReadAll())(t)
		core := 0
		for _, row := range table[1:] {
			n := must.Get(strconv.Atoi(row[6]))(t)
			if core += n; row[1] == "(total)" {
				if core != 2*n {
					t.Errorf("%s: %v", args, table)
				}
				core = 0
			}
		}
	}
}

func stdout(t *testing.T, args string) string {
	out, _, err := run(t, fakeClient(t, accounts()...), args)
	must.Do(t, err)
	return out
}

func TestUsageErrors(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: "sliceusages"}, "", errors.New(`User "eve" cannot list it`))
	for args, test := range map[string]struct {
		err  error
		want []string
	}{
		"usage":                        {forbidden, []string{`"eve"`, "create clusterrolebinding", "cluster-wide", "--clusterrole=vernier-viewer", "Prometheus"}},
		"usage -A":                     {apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.Group, Resource: "sliceusages"}, ""), []string{"sliceusages.vernier.dev", "is Vernier installed?"}},
		"usage --since 7":              {nil, []string{`--since "7"`, "7d"}},
		"usage --since -1h":            {nil, []string{"--since"}},
		"usage --since 99999999999d":   {nil, []string{"--since"}},
		"usage --by workload":          {nil, []string{`--by "workload"`, "namespace or model"}},
		"usage --prices A100":          {nil, []string{`--prices "A100"`, "MODEL=PRICE"}},
		"usage --prices A100=-1":       {nil, []string{"MODEL=PRICE"}},
		"usage --prices A100=NaN":      {nil, []string{"MODEL=PRICE"}},
		"usage --prices !A100=1":       {nil, []string{"one model's name"}},
		"usage -o name":                {nil, []string{"-o name is of"}},
		"slices -o csv":                {nil, []string{`"csv" is unknown`}},
		"usage --prices A100=1,A100=x": {nil, []string{`"A100=x"`}},
	} {
		out, _, err := run(t, failing{fakeClient(t, accounts()...), test.err}, args)
		if err == nil || out != "" {
			t.Errorf("%s: printed %q, error %v", args, out, err)
			continue
		}
		for _, part := range test.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %q does not say %q", args, err, part)
			}
		}
	}
	if out, errOut, err := run(t, fakeClient(t), "usage -A"); err != nil || out != "" || errOut != "No usage: no node agent has published an account since then.\n" {
		t.Errorf("%q, %q, %v", out, errOut, err)
	}
}

// Without --prices the chart's count, where there are some that the user may read.
func TestUsage_WhenTheChartHasPrices(t *testing.T) {
	chart := func(text string) client.WithWatch {
		return fakeClient(t, append(accounts(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: pricesName}, Data: map[string]string{pricesKey: text},
		})...)
	}
	want := stdout(t, "usage -A --prices A100=2.5,L4=1")
	out, errOut, err := run(t, chart("A100=2.5\nL4=1\n"), "usage -A")
	if err != nil || out != want || !strings.Contains(out, "COST") || !strings.Contains(errOut, "configmap/vernier-prices: no price for Tesla T4\n") || strings.Contains(errOut, "L4") {
		t.Errorf("%s%s%v; want %s", out, errOut, err, want)
	}
	if out, _, err := run(t, chart("A100=2.5\n"), "usage -A --prices="); err != nil || strings.Contains(out, "COST") {
		t.Errorf("an empty --prices: %s%v", out, err)
	}
	if _, _, err := run(t, chart("A100=cheap"), "usage -A"); err == nil || !strings.Contains(err.Error(), `configmap/vernier-prices "A100=cheap": write MODEL=PRICE`) {
		t.Errorf("got %v", err)
	}
	for _, refusal := range []error{
		apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, pricesName, errors.New("no")),
		apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, pricesName),
	} {
		r := interceptor.NewClient(chart("A100=2.5\n"), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return refusal
			},
		})
		if out, _, err := run(t, r, "usage -A"); err != nil || strings.Contains(out, "COST") || !strings.Contains(out, "team-a") {
			t.Errorf("%v: %s%v", refusal, out, err)
		}
	}
}

// Accounts are read some at a time.
func TestUsageReadsPages(t *testing.T) {
	pages := 0
	r := interceptor.NewClient(fakeClient(t), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			asked := (&client.ListOptions{}).ApplyOptions(o)
			if pages++; asked.Limit != accountsAtOnce || pages > 1 && asked.Continue != strconv.Itoa(pages-1) {
				t.Errorf("page %d asks for %+v", pages, asked)
			}
			all := list.(*v1alpha1.SliceUsageList)
			if all.Items = []v1alpha1.SliceUsage{*accounts()[0].(*v1alpha1.SliceUsage)}; pages < 3 {
				all.Continue = strconv.Itoa(pages)
			}
			return nil
		}})
	out, errOut, err := run(t, r, "usage -A")
	if err != nil || pages != 3 || !strings.Contains(out, "120.00") || !strings.Contains(errOut, "nodes: 3") {
		t.Errorf("%d pages: %s%s %v", pages, out, errOut, err)
	}
}
