// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package installed

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/manifests"
)

// elsewhere are blocks of commands that something else runs, by their first line.
var elsewhere = map[string]string{
	"make demo     # pods sharing GPUs, what each sees, one that waits and why":                                    "the two commands themselves; .ci/run runs the second",
	"T=…/cluster-trace-gpu-v2023/csv":                                                                              "test/bench/placement, whose tests have traces of their own",
	`helm upgrade vernier deploy/chart --namespace vernier-system --reuse-values \ # with the Prometheus Operator`: "TestMonitoring in deploy: here is no Prometheus Operator",
	`printf '#!/bin/sh\nexec kubectl vernier __complete "$@"\n' > /usr/local/bin/kubectl_complete-vernier`:         "TestCompletion of the plugin: that folder is not the test's",
	// TestInstalled runs these, at its end.
	"kubectl delete mutatingwebhookconfigurations,validatingadmissionpolicybindings,validatingadmissionpolicies -l app.kubernetes.io/part-of=vernier": "here",
	`kubectl get pods -A -o jsonpath='{range .items[?(@.spec.schedulingGates)]}{.metadata.namespace} {.metadata.name}{"\n"}{end}' |`:                  "here",
	"helm uninstall vernier --namespace vernier-system --wait":                                                                                        "here",
}

// stand are what a reader puts for the words in capitals, and for what is his own.
var stand = strings.NewReplacer(
	"pod POD", "pod sharing --namespace "+namespace,
	// The pods of the test have no controller, and are needed after this.
	"kubectl vernier drain gpu-1/0 --timeout 10m", "kubectl vernier drain gpu-1/0 --force --dry-run=server",
	"NODE", node,
	"NAMESPACE", namespace,
	"gpu-1", node,
	// His manifests, and his chart.
	"-f manifests/", "-f test/e2e/installed/testdata/manifests",
	"helm template my-release my-chart", "cat test/e2e/installed/testdata/manifests/*.yaml",
	// It runs until it is stopped.
	"kubectl -n vernier-system port-forward deploy/vernier-allocator 8082",
	"timeout 5 kubectl -n vernier-system port-forward deploy/vernier-allocator 8082 | grep -q Forwarding",
	"-o /usr/local/bin/kubectl-vernier", "-o /dev/null",
)

var block = regexp.MustCompile("(?ms)^( *)```sh\n(.*?)^ *```")

// documented runs every block of shell commands that the documentation has, as a
// reader would. One that nobody runs fails the test.
func documented(t *testing.T) {
	t.Helper()
	root, err := manifests.Root()
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	run := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := filepath.Rel(root, page)
		for _, b := range block.FindAllStringSubmatch(string(text), -1) {
			script := strings.ReplaceAll("\n"+b[2], "\n"+b[1], "\n")[1:]
			first, _, _ := strings.Cut(script, "\n")
			if strings.Contains(script, "monitoring.") {
				first += " # with the Prometheus Operator"
			}
			if elsewhere[first] != "" {
				continue
			}
			run++
			await(t, name+": "+script, func(ctx context.Context) (bool, string) {
				out, err := sys.Shell(ctx, stand.Replace(script))
				if err != nil {
					return false, out + err.Error()
				}
				return true, ""
			})
		}
	}
	if run < 8 {
		t.Errorf("only %d blocks were found", run)
	}
}
