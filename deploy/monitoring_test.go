// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/v1alpha1"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tools/prometheus", append([]string{"promtool"}, args...)...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRules(t *testing.T) {
	promtool(t, "check", "rules", "chart/files/rules.yaml")
	promtool(t, "test", "rules", "testdata/rules_test.yaml")
}

// Whoever is woken by an alert finds it on the page for those on call.
func TestAlertsAreOnThePage(t *testing.T) {
	rules, err := os.ReadFile("chart/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(names) < 10 {
		t.Fatalf("only %d alerts were found", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name[1]+"`") {
			t.Errorf("docs/operations.md has no word of alert %s", name[1])
		}
	}
}

// promtool is satisfied with no tests at all: every rule has one in which it has a
// value, and every alert one in which it fires.
func TestEveryRuleIsTested(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct{ Record, Alert string }
		}
	}
	var tests struct {
		Tests []struct {
			PromQL []struct {
				Expr    string
				Samples []any `json:"exp_samples"`
			} `json:"promql_expr_test"`
			Alerts []struct {
				Name  string `json:"alertname"`
				Fires []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	for file, into := range map[string]any{"chart/files/rules.yaml": &rules, "testdata/rules_test.yaml": &tests} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	tested := map[string]bool{}
	for _, one := range tests.Tests {
		for _, q := range one.PromQL {
			tested[q.Expr] = tested[q.Expr] || len(q.Samples) > 0
		}
		for _, a := range one.Alerts {
			tested[a.Name] = tested[a.Name] || len(a.Fires) > 0
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if name := r.Record + r.Alert; !tested[name] {
				t.Errorf("%s: no test in which it has a value, or fires", name)
			}
		}
	}
}

// Monitoring is there when it is asked for, and says what its files say.
func TestMonitoring(t *testing.T) {
	plain, err := render(t)
	if err != nil {
		t.Fatal(plain.text)
	}
	for _, kind := range []string{"PodMonitor", "PrometheusRule", "ConfigMap"} {
		if strings.Contains(plain.text, "kind: "+kind) {
			t.Errorf("a %s that nobody asked for, whose API a cluster may not have", kind)
		}
	}
	all, err := render(t, "--set=monitoring.podMonitors.create=true,monitoring.podMonitors.labels.release=mine",
		"--set=monitoring.rules.create=true,monitoring.dashboard.create=true")
	if err != nil {
		t.Fatal(all.text)
	}
	for _, part := range []string{"webhook", "allocator", "node"} {
		m := all.object("PodMonitor", "vernier-"+part)
		if m == nil || m.GetLabels()["release"] != "mine" {
			t.Fatalf("PodMonitor of %s: %v", part, m)
		}
		endpoints, _, _ := unstructured.NestedSlice(m.Object, "spec", "podMetricsEndpoints")
		if token, _, _ := unstructured.NestedString(endpoints[0].(map[string]any), "authorization", "credentials", "name"); token != "vernier-metrics-token" {
			t.Errorf("PodMonitor of %s reads with the token of %q", part, token)
		}
		// It selects the part's pods, and they have the port.
		selected, _, _ := unstructured.NestedStringMap(m.Object, "spec", "selector", "matchLabels")
		found := false
		for _, w := range workloads(t, all.objects) {
			if !strings.HasSuffix(w.name, " vernier-"+part) {
				continue
			}
			for key, value := range selected {
				if w.template.Labels[key] != value {
					t.Errorf("%s: %s is %q on the pods", part, key, w.template.Labels[key])
				}
			}
			for _, p := range w.template.Spec.Containers[0].Ports {
				found = found || p.Name == "metrics"
			}
		}
		if !found {
			t.Errorf("%s serves no port metrics", part)
		}
	}
	// Its token is of the account that may read metrics.
	secret := all.object("Secret", "vernier-metrics-token")
	if secret == nil || secret.GetAnnotations()["kubernetes.io/service-account.name"] != v1alpha1.MetricsServiceAccount {
		t.Errorf("the token of the PodMonitors: %v", secret)
	}
	want := map[string]any{}
	text, err := os.ReadFile("chart/files/rules.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	if rules := all.object("PrometheusRule", "vernier-rules"); rules == nil || !sameJSON(rules.Object["spec"], want) {
		t.Errorf("the rules in the cluster are not those that were checked: %v", rules)
	}
	text, err = os.ReadFile("chart/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	dashboard := all.object("ConfigMap", "vernier-dashboard")
	if dashboard == nil || dashboard.GetLabels()["grafana_dashboard"] != "1" {
		t.Fatalf("no dashboard that Grafana finds: %v", dashboard)
	}
	if got, _, _ := unstructured.NestedString(dashboard.Object, "data", "vernier.json"); got != string(text) {
		t.Error("the dashboard in the cluster is another one")
	}
	if out, err := render(t, "--set=monitoring.podMonitors.interval=often"); err == nil || !strings.Contains(out.text, "interval") {
		t.Errorf("a wrong interval: %v, %s", err, out.text)
	}
}

func sameJSON(a, b any) bool {
	one, err1 := json.Marshal(a)
	two, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(one) == string(two)
}
