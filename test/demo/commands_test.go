// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/docs"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// commands are the plugin's subcommands as a reader of the docs types them, and words of a
// line that each prints once the story is told.
var commands = map[string]struct{ args, prints string }{
	"advise":     {"-n " + namespace + " -o json", `"AdviceList",`},
	"check":      {"|| [ $? = 1 ]", "policies ok … admission policies are in force"}, // its parts run as processes, not as pods
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
	"quota":      {namespace + " --gpus 2.5 --dry-run=server", "resourcequota/vernier-gpus created (server dry run)"},
	"resize":     {"infer -n " + namespace + " --core 10", "pod " + namespace + "/infer: main to 10 %: in force"},
	"slices":     {"-n " + namespace, "train main " + node + "/… attached"},
	"tides":      {"", "No tides:"},
	"top":        {"-n " + namespace, "train main " + node + " 6144/40656"},
	"uninstall":  {"--wait", "Namespace/vernier-system deleted (dry run)"},
	"uncordon":   {node + "/0", "gpu/" + node + "/0 uncordoned"},
	"usage":      {"-A --since 1h", "(total)"},
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
				return err == nil && c.prints != "" && docs.Prints(out, c.prints), out
			})
		})
	}
}

// kubectl shows more of a ledger with -o wide.
func checkWide(t *testing.T, sys *system.System) {
	for options, want := range map[string]bool{"": false, "-o wide": true} {
		out := must.Get(sys.Shell(t.Context(), "kubectl get sliceledgers "+options))(t)
		head, _, _ := strings.Cut(out, "\n")
		for _, column := range []string{"CUDA", "MPS", "GDR", "NOTE"} {
			if slices.Contains(strings.Fields(head), column) != want {
				t.Errorf("kubectl get sliceledgers %s: column %s is there: %t\n%s", options, column, !want, out)
			}
		}
	}
}

// emptyField is a key without a value.
var emptyField = regexp.MustCompile(`(?m)^[IE]\d{4} .*\s\w+=(""|<nil>|null|"<nil>"|"/")(\s.*)?$`)

// ofClientGo is a line of client-go's own, of a Lease or a watch: a busy machine makes them, and two replicas
// that make their first Lease at once.
var ofClientGo = regexp.MustCompile(`^E\d{4} \S+ +\d+ (leaderelection|reflector)\.go:`)

// errorLine is a line of Kubernetes' logs that says that something failed.
var errorLine = regexp.MustCompile(`(?m)^E\d{4} .*`)

// A healthy system logs no error and no empty field, and the cluster that it is shown on warns of nothing of its own.
func checkQuiet(t *testing.T, sys *system.System) {
	for _, part := range sys.Parts() {
		log := string(must.Get(os.ReadFile(part.Log))(t))
		if log == "" {
			t.Errorf("%s logs nothing", part.Name)
		}
		for _, line := range errorLine.FindAllString(log, -1) {
			if !ofClientGo.MatchString(line) {
				t.Errorf("%s: %s", part.Name, line)
			}
		}
		for _, line := range emptyField.FindAllString(log, -1) {
			t.Errorf("%s: an empty field: %s", part.Name, line)
		}
	}
	if out := must.Get(sys.Shell(t.Context(), "kubectl get events -A --field-selector reason=MissingClusterDNS -o name"))(t); out != "" {
		t.Errorf("the demo's own warnings:\n%s", out)
	}
}
