// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/docs"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// The demo shows what it says, what it prints at its end works when it is pasted, and
// there the examples print what their pages show.
func TestDemo(t *testing.T) {
	rendered := must.Get(renderValues(t.Context(), filepath.Join(t.TempDir(), "manifests"), "allocator.reserveAfter=20s idle.after=30s overcommit.core[0].nodeSelector.pool=overcommitted overcommit.core[0].percent=150"))(t)
	gpus := simulated
	gpus.Args = []string{"--sys-dir=" + sysfsWithNIC(t)}
	sys, err := up(t.Context(), gpus, rendered)
	if sys != nil {
		t.Cleanup(func() { must.Report(t, sys.Down()) })
	}
	must.Do(t, err)
	must.Do(t, sys.Namespaces(t.Context(), map[string]bool{namespace: true}))
	must.Do(t, story(t.Context(), sys))
	t.Run("Commands", func(t *testing.T) { checkCommands(t, sys) })
	t.Run("Wide", func(t *testing.T) { checkWide(t, sys) })
	t.Run("Quiet", func(t *testing.T) { checkQuiet(t, sys) })
	var page func(context.Context) (string, error)
	if !t.Run("HandOver", func(t *testing.T) { page = checkHandOver(t, sys) }) {
		return
	}
	t.Run("Causes", func(t *testing.T) { checkCauses(t, sys, page) })
	root := must.Get(manifests.Root())(t)
	examples := must.Get(os.ReadDir(filepath.Join(root, "docs/examples")))(t)
	index := must.Get(os.ReadFile(filepath.Join(root, "docs/examples/README.md")))(t)
	pages := must.Get(docs.Commands(root))(t)
	tasks := must.Get(filepath.Glob(filepath.Join(root, "docs/tasks/*.md")))(t)
	for _, path := range tasks {
		page := filepath.Join("docs/tasks", filepath.Base(path))
		t.Run(filepath.Base(path), func(t *testing.T) {
			for _, b := range pages {
				if b.Page == page && b.Session && strings.HasSuffix(b.RunBy, " TestDemo") {
					session(t, sys, b)
				}
			}
		})
	}
	// Examples that need guests run last: the others run without them. Those with Kueue come after the rest.
	needs := map[string][]string{
		"jobset": {"jobset"}, "ray": {"kuberay"}, "trainer": {"jobset", "trainer"},
		"fair-share": {"kueue"}, "fair-use": {"kueue"}, "queues": {"kueue"}, "leaderworkerset": {"lws", "kueue"},
	}
	last := []string{"jobset", "ray", "trainer", "fair-share", "fair-use", "queues", "leaderworkerset"}
	slices.SortStableFunc(examples, func(a, b os.DirEntry) int {
		return cmp.Compare(slices.Index(last, a.Name()), slices.Index(last, b.Name()))
	})
	installed := map[string]bool{}
	for _, example := range examples {
		if !example.IsDir() {
			continue
		}
		name := example.Name()
		for _, guest := range needs[name] {
			if !installed[guest] {
				installed[guest] = true
				must.Do(t, sys.InstallGuest(t.Context(), guest, fairSharing...))
			}
		}
		t.Run(name, func(t *testing.T) {
			var sessions []docs.Block
			for _, b := range pages {
				if b.Page == filepath.Join("docs/examples", name, "README.md") && b.Session {
					if !strings.HasSuffix(b.RunBy, " TestDemo") {
						t.Skip(cmp.Or(b.NotRun, "run by "+b.RunBy))
					}
					sessions = append(sessions, b)
				}
			}
			if name == "rdma" {
				serveNIC(t, sys)
			}
			t.Cleanup(func() {
				if out, err := sys.Shell(context.Background(), "kubectl delete --ignore-not-found -f docs/examples/"+name); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
			if !strings.Contains(string(index), "]("+name+"/README.md)") {
				t.Errorf("docs/examples/README.md does not name it")
			}
			eventually(t, "nothing to be left of what was before", func(ctx context.Context) (bool, string) {
				out, err := sys.Shell(ctx, "kubectl get pods,deployments,jobs -o name; kubectl get sliceledgers -o jsonpath='{.items[*].spec.devices[*].slices}'")
				return err == nil && out == "", out
			})
			checkTogether(t, sys, name)
			ran := 0
			for _, b := range sessions {
				ran += session(t, sys, b)
			}
			if ran < 3 {
				t.Errorf("its page shows %d commands", ran)
			}
		})
	}
}

// checkHandOver pastes the text, and reads the page as it says. It returns how that is done.
func checkHandOver(t *testing.T, sys *system.System) (page func(context.Context) (string, error)) {
	text := must.Get(handOver(t.Context(), sys))(t)
	script, _, found := strings.Cut(text, end)
	use, room, alsoFound := strings.Cut(script, "# room")
	if !found || !alsoFound {
		t.Fatalf("it does not say how to end, or to make room:\n%s", text)
	}
	out, err := sys.Shell(t.Context(), use)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, "the pod to show its share", func(ctx context.Context) (bool, string) {
		log, err := sys.Shell(ctx, "kubectl logs share")
		return err == nil && strings.Contains(log, "total_mib=8192 "), log
	})
	token := regexp.MustCompile(`(?m)^ey\S+$`).FindString(out)
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(text)
	page = func(ctx context.Context) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return "", errors.New(answer.Status)
		}
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	used := regexp.MustCompile(`of 81313 MiB, [1-9]\d* in use`)
	eventually(t, "the page to show what is used", func(ctx context.Context) (bool, string) {
		text, err := page(ctx)
		return err == nil && used.MatchString(text), fmt.Sprint(err)
	})
	if out, err := sys.Shell(t.Context(), "#"+room); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return page
}

// session runs the commands of a page, each until it prints what the page shows, and
// returns how many there are.
func session(t *testing.T, sys *system.System, b docs.Block) (commands int) {
	t.Helper()
	steps := b.Steps()
	for _, step := range steps {
		eventually(t, fmt.Sprintf("%s to print\n%s", step.Command, step.Shown), func(ctx context.Context) (bool, string) {
			out, err := sys.Shell(ctx, step.Command)
			return err == nil && docs.Prints(out, step.Shown), out
		})
	}
	return len(steps)
}

func eventually(t *testing.T, what string, check func(context.Context) (bool, string)) {
	t.Helper()
	system.Await(t, patience, what, check)
}
