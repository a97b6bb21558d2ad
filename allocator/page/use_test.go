// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/page/usage"
	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// Who may read metrics sees what containers use beside what they were granted, of the nodes
// that are drawn; others see that there is more.
func TestUse(t *testing.T) {
	one, two := ledgerOf("gpu-1", 2), ledgerOf("gpu-2", 1)
	grant(one, 0, "team/train", 40, 250)
	grant(one, 0, "team/idle", 20, 250)
	grant(one, 1, "team/train", 50, 500)
	s := sources(one, two)
	var asked []string
	s.Uses = func(_ context.Context, nodes []string) map[string]usage.Reading {
		asked = nodes
		return map[string]usage.Reading{
			"gpu-1": {Uses: []view.Use{
				{Namespace: "team", Pod: "train", Container: "main", UUID: "GPU-gpu-1-0", Used: 100, Duty: ptr.To(30)},
				{Namespace: "team", Pod: "idle", Container: "main", UUID: "GPU-gpu-1-0", Used: 0},
				{Namespace: "team", Pod: "gone", Container: "main", UUID: "GPU-gpu-1-1", Used: 1},
			}},
			"gpu-2": {Err: errors.New("the agent's <pod> is not ready")},
		}
	}
	text := ask(newPage(s, keys{}), http.MethodGet, "/", "good", nil).Body.String()
	for _, want := range []string{
		"<b>60</b> of 100 %, 30 in use<", "<b>500</b> of 1000 MiB, 100 in use<",
		`title="team/train main: 40 %, 75 % of it in use"`, `<u style="width:75%"></u>`, `<u style="width:40%"></u>`,
		`title="team/idle main: 20 %"`, `title="team/idle main: 250 MiB, 0 % of it in use"`,
		`data-l="in use">30 %<`, `data-l="in use">100 MiB<`, "<b>50</b> of 100 %<", "the agent&#39;s &lt;pod&gt; is not ready",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	s.Pod = func(namespace, name string) (*corev1.Pod, error) {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: one.Spec.Devices[0].Slices[0].Pod}}, nil
	}
	s.Advice = func(context.Context) ([]v1alpha1.SliceAdvice, error) {
		a := v1alpha1.SliceAdvice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod.train.main"}}
		a.Status.Advice, a.Status.Confidence = v1alpha1.GPUAmounts{Core: 25, MemMiB: 120}, v1alpha1.ConfidenceHigh
		return []v1alpha1.SliceAdvice{a}, nil
	}
	text = ask(newPage(s, keys{}), http.MethodGet, "/", "good", nil).Body.String()
	if n := strings.Count(text, `data-l="advice">25 % compute and 120 MiB (high)<`); n != 2 {
		t.Errorf("advice is shown %d times, want at both slices of train", n)
	}
	if !slices.Equal(asked, []string{"gpu-1", "gpu-2"}) {
		t.Errorf("asked of %q", asked)
	}

	asked = nil
	p := New(s, Accesses{Ledgers: keys{}, Use: keys{errors.New("may not get /metrics")}}, logr.Discard())
	text = ask(p, http.MethodGet, "/", "good", nil).Body.String()
	if strings.Contains(text, "30 in use") || strings.Contains(text, "<u ") || asked != nil || !strings.Contains(text, "vernier-metrics-reader") {
		t.Errorf("who may not read metrics: asked of %q:\n%s", asked, text)
	}
	// Only what is drawn is asked of.
	var many []*v1alpha1.SliceLedger
	for i := range 3 * nodesPerPage {
		many = append(many, ledgerOf(fmt.Sprintf("n%03d", i), 1))
	}
	s.Ledgers = func(context.Context) ([]*v1alpha1.SliceLedger, error) { return many, nil }
	ask(newPage(s, keys{}), http.MethodGet, "/?page=2", "good", nil)
	if len(asked) != nodesPerPage || asked[0] != "n020" {
		t.Errorf("asked of %q", asked)
	}
}

// owned makes a pod one of a Deployment's.
func owned(p *corev1.Pod, deployment string) *corev1.Pod {
	p.Labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "5d4f"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: deployment + "-5d4f", Controller: ptr.To(true)}}
	return p
}

// Pods of one workload are one row, of those who hold GPUs and of those who wait; the rows
// are those of the GPUs that were chosen, and are sorted as was asked.
func TestWorkloads(t *testing.T) {
	a, b := ledgerOf("alpha", 2), ledgerOf("beta", 1)
	pods := map[string]*corev1.Pod{}
	for i := range 3 {
		name := fmt.Sprint("web-", i)
		grant(a, i%2, "team/"+name, 10, 300)
		pods[name] = owned(gated(name, noon), "web")
		pods[name].UID = types.UID("team/" + name)
	}
	grant(b, 0, "team/solo", 60, 100)
	grant(b, 0, "other/web-0", 5, 50) // a pod of that name that has gone
	s := sources(a, b)
	s.Pod = func(_, name string) (*corev1.Pod, error) {
		if pods[name] == nil {
			return nil, errors.New("no pod")
		}
		return pods[name], nil
	}
	for query, want := range map[string]string{
		"":                     "team pod/solo 1/1: 60 %, 100; team deployment/web 3/2: 30 %, 900; other pod/web-0 1/1: 5 %, 50",
		"by=memory":            "team deployment/web 3/2: 30 %, 900; team pod/solo 1/1: 60 %, 100; other pod/web-0 1/1: 5 %, 50",
		"by=pods":              "team deployment/web 3/2: 30 %, 900; other pod/web-0 1/1: 5 %, 50; team pod/solo 1/1: 60 %, 100",
		"by=name":              "other pod/web-0 1/1: 5 %, 50; team deployment/web 3/2: 30 %, 900; team pod/solo 1/1: 60 %, 100",
		"q=team/deployment":    "team deployment/web 3/2: 30 %, 900",
		"q=beta":               "team pod/solo 1/1: 60 %, 100; other pod/web-0 1/1: 5 %, 50",
		"q=web-2":              "team deployment/web 1/1: 10 %, 300",
		"q=other/&by=nonsense": "other pod/web-0 1/1: 5 %, 50",
		"only=empty":           "",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.read(t.Context(), choiceOf(values), true)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range f.Holders.Rows {
			got = append(got, fmt.Sprintf("%s %s %d/%d: %d %%, %d", h.Namespace, h.Workload, h.Pods, h.GPUs, h.Core, h.Mem))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}

	var waiting []*corev1.Pod
	var events []corev1.Event
	for i := range 300 {
		name := fmt.Sprintf("batch-%03d", i)
		waiting = append(waiting, owned(gated(name, noon), "batch"))
		events = append(events, event(name, "no room", noon))
	}
	waiting = append(waiting, gated("alone", noon))
	events[7].Message = "another reason"
	s.Gated = func() ([]*corev1.Pod, error) { return waiting, nil }
	s.Events = func(context.Context) ([]corev1.Event, error) { return events, nil }
	w, err := s.waiting(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, q := range w.Queue {
		got = append(got, fmt.Sprintf("%s %d of %s", q.Workload, q.Pods, q.Pod))
	}
	if want := "pod/alone 1 of alone; deployment/batch 299 of batch-000; deployment/batch 1 of batch-007"; strings.Join(got, "; ") != want || w.Pods != 301 || w.Shown != 301 {
		t.Errorf("%q of %d pods, %d shown, want %q", got, w.Pods, w.Shown, want)
	}
}

// Nodes come by name, or by how full they are.
func TestSort(t *testing.T) {
	a, b, c := ledgerOf("a", 2), ledgerOf("b", 1), ledgerOf("c", 1)
	grant(a, 0, "team/x", 60, 10)
	grant(c, 0, "team/y", 10, 500)
	for sort, want := range map[string]string{"": "a b c", "fullest": "c a b", "emptiest": "b a c", "nonsense": "a b c"} {
		f, err := sources(c, b, a).read(t.Context(), choiceOf(url.Values{"sort": {sort}}), false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range f.Nodes {
			got = append(got, n.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", sort, got, want)
		}
	}
}
