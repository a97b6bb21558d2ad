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

	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/system"
)

const chartFiles = "../../deploy/chart/files"

// prometheus is a real one that reads every part, with the chart's rules.
type prometheus struct {
	client  *http.Client
	targets int
}

func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	everybody(t)
	rules, err := filepath.Abs(filepath.Join(chartFiles, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs("../../deploy/tools/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	// Unpacked here: the place that it runs in has no way out.
	if out, err := exec.CommandContext(t.Context(), program, "prometheus", "--version").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	var jobs []any
	job := func(name, port string, parts ...*system.Process) {
		var targets []string
		for _, p := range parts {
			targets = append(targets, p.Place.IP+port)
		}
		jobs = append(jobs, map[string]any{
			"job_name": name, "honor_labels": true, "static_configs": []any{map[string]any{"targets": targets}},
		})
	}
	job("webhook", ":8080", sys.Webhooks...)
	job("allocator", ":8080", sys.Allocators...)
	var agents []*system.Process
	for _, n := range sys.Nodes {
		agents = append(agents, n.Agent)
	}
	job("node", ":9400", agents...)
	config, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	place, err := sys.Cluster.AddPlace("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	process, err := sys.Cluster.StartProcess(cluster.Command{Name: "prometheus", Place: place.Name, Argv: []string{
		program, "prometheus", "--config.file=" + file, "--storage.tsdb.path=" + dir,
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn",
	}, Env: []string{"XDG_CACHE_HOME=" + cache}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &prometheus{
		client:  &http.Client{Transport: &http.Transport{DialContext: place.Dial}},
		targets: len(sys.Webhooks) + len(sys.Allocators) + len(agents),
	}
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

// dashboard is every query of the chart's dashboard, with its variable set.
func dashboard(t *testing.T) (queries []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartFiles, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}{}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, strings.ReplaceAll(target.Expr, "$namespace", ".*"))
		}
	}
	return queries
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
	if err := p.ask(t, "rules", &state); err != nil {
		t.Fatal(err)
	}
	queries := dashboard(t)
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
