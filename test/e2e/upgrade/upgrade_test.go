// SPDX-License-Identifier: Apache-2.0

//go:build upgrade

// Package upgrade owns the proof that nothing stops and nothing is lost from the release
// before to this one and back: both are installed as their users would, by chart and images,
// with the commands of docs/install.md.
package upgrade

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

const (
	namespace = "tenants"
	shared    = "gpu-1" // its GPU is shared
	whole     = "gpu-2" // one of its GPUs is somebody's own
)

var sys *system.System

func TestMain(m *testing.M) {
	before := os.Getenv("VERNIER_RELEASE_BEFORE") // made by ./before
	if before == "" {
		fmt.Fprintln(os.Stderr, "VERNIER_RELEASE_BEFORE is not set: run `make test-upgrade`")
		os.Exit(2)
	}
	os.Exit(system.Main(m, system.Options{Name: "upgrade", Chart: true, Release: before, Nodes: []system.NodeOptions{
		{Name: shared, GPUs: simgpu.GPU{Model: simgpu.A100}, Driver: simgpu.Driver555},
		{Name: whole, GPUs: simgpu.GPU{Model: simgpu.H100, Count: 2}},
	}}, makeReady))
}

func makeReady(ctx context.Context, s *system.System) error {
	sys = s
	if err := sys.Namespaces(ctx, map[string]bool{namespace: true}); err != nil {
		return err
	}
	return sys.ImportImages(ctx, filepath.Join(os.Getenv("VERNIER_BIN"), "images"))
}

// Running pods, pods that wait and the ledgers, there and back: Invariants 1, 2, 4 and 6. What
// waits on the shared GPU waits for compute, of which 90 percent are granted.
//
// Not here: instances of MIG, whose device numbers are simulated outside of pods only, and
// MPS, whose servers end with the agent's container on a machine with cgroup v1.
func TestUpgrade(t *testing.T) {
	there, back := documented(t)

	thirty, forty, leaving := start(t, burner("old-30", 30)), start(t, burner("old-40", 40)), start(t, holder("old-20", 20))
	old := append(othersOf(t, "old"), thirty, forty, start(t, newPod("old-whole", whole).share(100, 0).burns(20)))
	twenty, second := create(t, holder("waits-20", 20)), create(t, holder("waits-40", 40))
	checkWait(t, twenty, second)
	awaitShares(t, thirty, forty)
	remember(t, append(old, leaving)...)

	run(t, there)
	check(t, append(old, leaving)...)
	checkWait(t, twenty, second)
	ten := start(t, burner("new-10", 10))
	newer := append(othersOf(t, "new"), ten)
	fifty := create(t, holder("waits-50", 50))
	awaitShares(t, thirty, forty, ten)
	checkTurns(t, true, thirty, forty, ten)
	remove(t, leaving)
	newer = append(newer, awaitStarted(t, twenty))
	checkWait(t, second, fifty)
	check(t, old...)
	remember(t, newer...)

	run(t, back)
	check(t, append(old, newer...)...)
	checkWait(t, second, fifty)
	last := othersOf(t, "last")
	// The release before does not know the new layout: those have their limits, and no turns.
	checkTurns(t, true, thirty, forty)
	checkTurns(t, false, ten, twenty)
	remove(t, forty)
	awaitStarted(t, second)
	checkWait(t, fifty)
	remove(t, second)
	remove(t, twenty)
	awaitStarted(t, fifty)
	for _, l := range append(append(append(old, newer...), last...), fifty) {
		remove(t, l)
	}
	awaitEmpty(t)

	run(t, there)
	awaitNothingLeft(t)
}

// documented are the commands of docs/install.md that go there and back.
func documented(t *testing.T) (there, back string) {
	t.Helper()
	page := must.Get(os.ReadFile("../../../docs/install.md"))(t)
	section := regexp.MustCompile(`(?s)\n## Upgrade\n.*?\n## `).FindString(string(page))
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(section)
	rollback := regexp.MustCompile("`(helm rollback [^`]*)`").FindStringSubmatch(section)
	if block == nil || rollback == nil {
		t.Fatal("docs/install.md does not say how to upgrade, or how to go back")
	}
	return block[1], rollback[1]
}

// run goes to another release, and returns when it serves pods.
func run(t *testing.T, script string) {
	t.Helper()
	out, err := sys.Shell(t.Context(), script)
	if err != nil {
		more, _ := sys.Shell(t.Context(), "kubectl -n vernier-system get pods,events")
		t.Fatalf("%v: %s\n%s", err, out, more)
	}
	await(t, "nothing of the other release to be there", func() (bool, string) {
		out, err := sys.Shell(t.Context(), "kubectl -n vernier-system get pods -o jsonpath='{range .items[*]}{.spec.containers[0].image} {end}'")
		versions := map[string]bool{}
		for _, image := range strings.Fields(out) {
			_, version, _ := strings.Cut(image, ":")
			versions[version] = true
		}
		return err == nil && len(versions) == 1, out
	})
	sys.AwaitServing(t)
}

// othersOf starts a pod without a quota of compute, and one where the driver is newer.
func othersOf(t *testing.T, name string) []*load {
	return []*load{start(t, holder(name+"-memory", 0)), start(t, newPod(name+"-elsewhere", whole).share(20, 10).burns(5))}
}
