// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

const chartFiles = "../../deploy/chart/files"

// prometheus is a real one that reads every part, with the chart's rules.
type prometheus struct {
	client  *http.Client
	targets int
}

func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	rules := must.Get(filepath.Abs(filepath.Join(chartFiles, "rules.yaml")))(t)
	program := must.Get(filepath.Abs("../../deploy/tools/prometheus"))(t)
	// Unpacked here: the place that it runs in has no way out.
	if out, err := exec.CommandContext(t.Context(), program, "prometheus", "--version").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
	cache := must.Get(os.UserCacheDir())(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	must.Do(t, os.WriteFile(token, []byte(podMonitorToken(t)), 0o600))
	var targets []string
	for _, p := range sys.Parts() {
		targets = append(targets, p.MetricsAddress())
	}
	// What a PodMonitor of the chart becomes.
	job := map[string]any{
		"job_name": "vernier", "honor_labels": true, "static_configs": []any{map[string]any{"targets": targets}},
		"scheme": "https", "tls_config": map[string]any{"insecure_skip_verify": true},
		"authorization": map[string]any{"credentials_file": token},
	}
	config := must.Get(yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": []any{job},
	}))(t)
	file := filepath.Join(dir, "prometheus.yml")
	must.Do(t, os.WriteFile(file, config, 0o600))
	place := must.Get(sys.Cluster.AddPlace("prometheus"))(t)
	process := must.Get(sys.Cluster.StartProcess(cluster.Command{Name: "prometheus", Place: place.Name, Argv: []string{
		program, "prometheus", "--config.file=" + file, "--storage.tsdb.path=" + dir,
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn",
	}, Env: []string{"XDG_CACHE_HOME=" + cache}}))(t)
	t.Cleanup(func() { must.Report(t, process.Stop(context.Background())) })
	return &prometheus{
		client:  &http.Client{Transport: &http.Transport{DialContext: place.Dial}},
		targets: len(targets),
	}
}

// podMonitorToken is the token that the chart has PodMonitors read with.
func podMonitorToken(t *testing.T) string {
	t.Helper()
	out := must.Get(exec.CommandContext(t.Context(), "../../deploy/tools/helm", "template", "vernier", "../../deploy/chart",
		"--namespace", v1alpha1.SystemNamespace, "--show-only=templates/monitoring.yaml", "--set=monitoring.podMonitors.create=true").Output())(t)
	objects := must.Get(manifests.Parse(out))(t)
	secret := objects[0]
	if secret.GetKind() != "Secret" {
		t.Fatalf("the chart begins its monitoring with a %s", secret.GetKind())
	}
	must.Do(t, manifests.Apply(t.Context(), sys.Client, secret))
	t.Cleanup(func() {
		must.Report(t, sys.Kube.CoreV1().Secrets(secret.GetNamespace()).Delete(context.Background(), secret.GetName(), metav1.DeleteOptions{}))
	})
	token := ""
	await(t, "the Secret to have a token", func() (bool, string) {
		s, err := sys.Kube.CoreV1().Secrets(secret.GetNamespace()).Get(t.Context(), secret.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		token = string(s.Data[corev1.ServiceAccountTokenKey])
		return token != "", ""
	})
	return token
}

// ask reads the data of an answer of its API.
func (p *prometheus) ask(t *testing.T, path string, data any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:9090/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          json.RawMessage
	}{}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return json.Unmarshal(answer.Data, data)
}

// series is what a query finds.
func (p *prometheus) series(t *testing.T, query string) ([]map[string]string, error) {
	t.Helper()
	found := struct {
		Result []struct{ Metric map[string]string }
	}{}
	err := p.ask(t, "query?query="+url.QueryEscape(query), &found)
	var labels []map[string]string
	for _, r := range found.Result {
		labels = append(labels, r.Metric)
	}
	return labels, err
}

// dashboard is every query of the chart's dashboard, with its variables set to all.
func dashboard(t *testing.T) (queries []string) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(chartFiles, "dashboard.json")))(t)
	d := struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}{}
	must.Do(t, json.Unmarshal(text, &d))
	all := strings.NewReplacer("$namespace", ".*", "$model", ".*", "$node", ".*")
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, all.Replace(target.Expr))
		}
	}
	return queries
}

// Nobody reads the names of all pods without a token of somebody who may read
// metrics.
func TestMetricsAreForThoseWhoMayRead(t *testing.T) {
	stranger := account(t, "metrics-stranger", "")
	for _, p := range sys.Parts() {
		await(t, p.Name+" to be read", func() (bool, string) {
			_, err := p.Metrics(t.Context())
			return err == nil, fmt.Sprint(err)
		})
		for token, want := range map[string]string{"": "401 Unauthorized", "nonsense": "401 Unauthorized", stranger: "bind the cluster role vernier-metrics-reader"} {
			await(t, p.Name+" to turn a reader away", func() (bool, string) {
				text, err := p.MetricsFor(t.Context(), token)
				if err == nil {
					t.Fatalf("%s: read with the token %q, want %s: %s", p.Name, token, want, text)
				}
				// One that has just been started answers nobody yet.
				return strings.Contains(err.Error(), want), fmt.Sprint(err)
			})
		}
	}
}

// A real Prometheus reads every part, the rules are evaluated, and every panel of
// the dashboard shows something while a pod works.
func TestPrometheusReadsEverything(t *testing.T) {
	t.Parallel()
	busy := awaitReady(t, create(t, burner("watched", 30)))
	p := startPrometheus(t)
	await(t, "every part to be read", func() (bool, string) {
		state := struct {
			ActiveTargets []struct{ ScrapeURL, Health, LastError string }
		}{}
		if err := p.ask(t, "targets", &state); err != nil {
			return false, err.Error()
		}
		up := 0
		for _, target := range state.ActiveTargets {
			if target.Health == "up" {
				up++
			}
		}
		return up == p.targets, fmt.Sprintf("%+v", state.ActiveTargets)
	})
	state := struct {
		Groups []struct {
			Rules []struct{ Name, Type, Health, LastError string }
		}
	}{}
	must.Do(t, p.ask(t, "rules", &state))
	// What docs/reference/metrics.md says of the allocator's queue isn't in its own metrics.
	queries := append(dashboard(t), `workqueue_depth{name="allocator"}`, `workqueue_queue_duration_seconds_count{name="allocator"} > 0`)
	for _, group := range state.Groups {
		for _, rule := range group.Rules {
			if rule.Type == "recording" {
				queries = append(queries, rule.Name)
			}
		}
	}
	if len(queries) < 20 {
		t.Fatalf("only %d queries: %q", len(queries), queries)
	}
	for _, query := range queries {
		await(t, "something to be found by "+query, func() (bool, string) {
			found, err := p.series(t, query)
			return err == nil && len(found) > 0, fmt.Sprint(found, err)
		})
	}
	await(t, "the pod under its own name, with AcceleratorStats", func() (bool, string) {
		found, err := p.series(t, "container_accelerator_memory_used_bytes")
		for _, s := range found {
			if s["namespace"] == busy.Namespace && s["pod"] == busy.Name && s["container"] == "main" && s["make"] == "nvidia" && s["model"] != "" {
				return true, ""
			}
		}
		return false, fmt.Sprint(found, err)
	})
}
