// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
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

// ruleFile is what is read of rules.yaml.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Annotations         map[string]string
		}
	}
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	must.Do(t, err)
}

// runbook is where each alert's runbook_url leads, unless the chart is told otherwise.
const runbook = "https://vernier.dev/docs/operations.md"

// Each alert's runbook_url leads to its row in docs/operations.md.
func TestAlertsHaveARunbook(t *testing.T) {
	var rules ruleFile
	readYAML(t, "chart/files/rules.yaml", &rules)
	page := must.Get(os.ReadFile("../docs/operations.md"))(t)
	alerts := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			alerts++
			anchor := strings.ToLower(r.Alert)
			if url := r.Annotations["runbook_url"]; url != runbook+"#"+anchor {
				t.Errorf("%s: runbook_url %q", r.Alert, url)
			}
			if !strings.Contains(string(page), `<a id="`+anchor+`"></a>`+"`"+r.Alert+"`") {
				t.Errorf("docs/operations.md has no row of alert %s with the anchor %s", r.Alert, anchor)
			}
		}
	}
	if alerts < 10 {
		t.Fatalf("only %d alerts were found", alerts)
	}
}

// metricName finds the names of our metrics and recording rules in a query.
var metricName = regexp.MustCompile(`\b(?:vernier[_:]|container_accelerator_)[a-z0-9_:]+`)

// Each query of the dashboard parses, and it and the rules ask for metrics that the
// reference lists, by labels that these have.
func TestQueries(t *testing.T) {
	var rules ruleFile
	readYAML(t, "chart/files/rules.yaml", &rules)
	var board dashboard
	readYAML(t, "chart/files/dashboard.json", &board)
	reference := must.Get(os.ReadFile("../docs/reference/metrics.md"))(t)
	known := map[string]string{} // labels by name
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [a-z]+ \\| (.*?) \\|").FindAllStringSubmatch(string(reference), -1) {
		known[row[1]] = row[2] + "`node`"
	}
	queries := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				known[r.Record] = ""
			}
			queries[r.Record+r.Alert] = r.Expr
		}
	}
	var parsed strings.Builder
	parsed.WriteString("groups: [{name: dashboard, rules: [\n")
	variables := strings.NewReplacer("$namespace", ".*", "$model", ".*", "$node", ".*")
	for i, p := range board.Panels {
		for j, q := range p.Targets {
			expr := variables.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: a variable that nothing sets: %s", p.Title, expr)
			}
			fmt.Fprintf(&parsed, "{record: 'panel:%d:%d', expr: %q},\n", i, j, expr)
			queries[fmt.Sprintf("panel %s, query %d", p.Title, j)] = expr
		}
	}
	parsed.WriteString("]}]\n")
	if len(queries) < 40 {
		t.Fatalf("only %d queries were found", len(queries))
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	must.Do(t, os.WriteFile(file, []byte(parsed.String()), 0o600))
	promtool(t, "check", "rules", file)
	for where, expr := range queries {
		for _, name := range metricName.FindAllString(expr, -1) {
			if _, is := known[strings.TrimSuffix(name, "_bucket")]; !is {
				t.Errorf("%s: docs/reference/metrics.md has no %s", where, name)
			}
		}
	}
	for _, v := range board.Templating.List {
		if of := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query); of != nil && !strings.Contains(known[of[1]], "`"+of[2]+"`") {
			t.Errorf("variable %s: %s has no label %s", v.Name, of[1], of[2])
		}
	}
}

// promtool is satisfied with no tests at all: every rule has one in which it has a
// value, and every alert one in which it fires.
func TestEveryRuleIsTested(t *testing.T) {
	var rules ruleFile
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
	readYAML(t, "chart/files/rules.yaml", &rules)
	readYAML(t, "testdata/rules_test.yaml", &tests)
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
	readYAML(t, "chart/files/rules.yaml", &want)
	if rules := all.object("PrometheusRule", "vernier-rules"); rules == nil || !sameJSON(rules.Object["spec"], want) {
		t.Errorf("the rules in the cluster are not those that were checked: %v", rules)
	}
	text := must.Get(os.ReadFile("chart/files/dashboard.json"))(t)
	dashboard := all.object("ConfigMap", "vernier-dashboard")
	if dashboard == nil || dashboard.GetLabels()["grafana_dashboard"] != "1" {
		t.Fatalf("no dashboard that Grafana finds: %v", dashboard)
	}
	if got, _, _ := unstructured.NestedString(dashboard.Object, "data", "vernier.json"); got != string(text) {
		t.Error("the dashboard in the cluster is another one")
	}
	own, err := render(t, "--set=monitoring.rules.create=true,monitoring.rules.runbookURL=https://wiki.example.com/gpus")
	if err != nil || strings.Contains(own.text, runbook) || strings.Count(own.text, "runbook_url: https://wiki.example.com/gpus#vernier") < 10 {
		t.Errorf("runbooks of one's own: %v", err)
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
