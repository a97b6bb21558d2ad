// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package installed

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/docs"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// stand are what a reader puts for the words in capitals, and for what is his own.
var stand = strings.NewReplacer(
	"pod POD", "pod sharing --namespace "+namespace,
	"deploy/NAME", "pod/sharing --namespace "+namespace,
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

// documented runs every block of commands that the documentation has, as a reader would,
// but for those of which the page says who else runs them, or why nobody does.
func documented(t *testing.T) {
	t.Helper()
	root := must.Get(manifests.Root())(t)
	all := must.Get(docs.Commands(root))(t)
	run := 0
	for _, b := range all {
		switch {
		case b.RunBy != "" || b.NotRun != "":
			continue
		case b.Session:
			session(t, b)
		default:
			await(t, b.Page+": "+b.Text, func(ctx context.Context) (bool, string) {
				out, err := sys.Shell(ctx, stand.Replace(b.Script()))
				if err != nil {
					return false, out + err.Error()
				}
				return true, ""
			})
		}
		run++
	}
	if run < 12 {
		t.Errorf("only %d blocks were run", run)
	}
}

// figures differ from run to run; how many there are does not.
var figures = regexp.MustCompile(`GPU-[0-9a-f-]+|[0-9]+(\.[0-9]+)?|\s+`)

// session has a session's commands print what it shows, but for the figures. The
// simulated GPU that it makes up is built already.
func session(t *testing.T, b docs.Block) {
	t.Helper()
	dir := t.TempDir()
	script := strings.NewReplacer(
		"make -C test/simgpu OUT=/tmp/sim", "cp -r bin/simgpu/. "+dir, "/tmp/sim", dir,
	).Replace(b.Script())
	// The last command may be one that fails, which is then shown.
	out, err := sys.Shell(t.Context(), "set +e\n"+script+"true")
	if err != nil {
		t.Errorf("%s:%d: %v: %s", b.Page, b.Line, err, out)
	}
	same := func(line string) string {
		return figures.ReplaceAllString(strings.ReplaceAll(line, dir, "/tmp/sim"), "#")
	}
	for _, line := range b.Printed() {
		if !strings.Contains(same(out), same(line)) {
			t.Errorf("%s:%d: no %q in\n%s", b.Page, b.Line, line, out)
		}
	}
}
