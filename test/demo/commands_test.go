// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// commands are the plugin's subcommands as a reader of the docs types them, and words of a
// line that each prints once the story is told.
var commands = map[string]struct{ args, prints string }{
	"classes":    {"", "No GPU classes:"},
	"completion": {"bash", "complete -F …kubectl-vernier kubectl-vernier"},
	"cordon":     {node + "/0 --reason fans", "gpu/" + node + "/0 cordoned"},
	"defrag":     {"", node + " " + namespace + "/infer"},
	"devices":    {"", node + " 0 ok,cordoned"},
	"drain":      {node + "/0 --force --dry-run=server", "evicting pod " + namespace + "/train"},
	"explain":    {"-f docs/examples/share/pod.yaml", "Pod/share admitted"},
	"fit":        {"-f docs/examples/share/pod.yaml -n " + namespace, "Pod/share: fits now, on 1 node"},
	"help":       {"why", "kubectl vernier why [KIND] NAME"},
	"inspect":    {"--unit MiB", node},
	"nodes":      {"", node + " True"},
	"slices":     {"-n " + namespace, "train main " + node + " attached"},
	"top":        {"-n " + namespace, "train main " + node + " …/40656"},
	"uncordon":   {node + "/0", "gpu/" + node + "/0 uncordoned"},
	"waiting":    {"-n " + namespace, "No pods wait for a slice"},
	"why":        {"train -n " + namespace, "Pod " + namespace + "/train: it does not wait for Vernier:"},
}

// Each subcommand that there is works on the demo's cluster.
func checkCommands(t *testing.T, sys *system.System) {
	proposed := must.Get(sys.Shell(t.Context(), "kubectl-vernier __complete ''"))(t)
	names := regexp.MustCompile(`(?m)^([a-z]+)\t`).FindAllStringSubmatch(proposed, -1)
	if len(names) != len(commands) {
		t.Errorf("%d commands are tested, and there are\n%s", len(commands), proposed)
	}
	for _, name := range names {
		t.Run(name[1], func(t *testing.T) {
			c := commands[name[1]]
			line := strings.TrimSpace("kubectl vernier " + name[1] + " " + c.args)
			eventually(t, line+" to print "+c.prints, func(ctx context.Context) (bool, string) {
				out, err := sys.Shell(ctx, line)
				return err == nil && c.prints != "" && prints(out, c.prints), out
			})
		})
	}
}

// errorLine is a line of Kubernetes' logs that says that something failed, with its message.
var errorLine = regexp.MustCompile(`(?m)^E\d{4} .*?\] "([^"]*)"`)

// sameErrors is how often a part of a healthy system may log the same error: replicas that start
// at once may be in each other's way, or the machine is busy.
const sameErrors = 3

// A healthy system does not log the same error time and again, and the cluster that it is shown on warns
// of nothing of its own.
func checkQuiet(t *testing.T, sys *system.System) {
	for _, part := range sys.Parts() {
		log := string(must.Get(os.ReadFile(part.Log))(t))
		if log == "" {
			t.Errorf("%s logs nothing", part.Name)
		}
		times := map[string]int{}
		for _, line := range errorLine.FindAllStringSubmatch(log, -1) {
			if times[line[1]]++; times[line[1]] == sameErrors+1 {
				t.Errorf("%s logs again and again: %s", part.Name, line[1])
			}
		}
	}
	if out := must.Get(sys.Shell(t.Context(), "kubectl get events -A --field-selector reason=MissingClusterDNS -o name"))(t); out != "" {
		t.Errorf("the demo's own warnings:\n%s", out)
	}
}
