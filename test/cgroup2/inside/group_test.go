// SPDX-License-Identifier: Apache-2.0

//go:build cgroup2

package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/test/must"
)

// group is a container's own cgroup.
type group struct {
	t   *testing.T
	id  string
	pid uint32
	dir string
}

// groupOf finds it as the agent does.
func groupOf(t *testing.T, id string, pid uint32) group {
	t.Helper()
	finder := must.Get(cgroup.New("/proc"))(t)
	dir := must.Get(finder.Leaf(pid, id))(t)
	return group{t: t, id: id, pid: pid, dir: dir}
}

// read is a file of its cgroup.
func (g group) read(name string) string {
	g.t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(g.dir, name)))(g.t)
	return strings.TrimSpace(string(text))
}

// want compares files of its cgroup.
func (g group) want(what string, files map[string]string) {
	g.t.Helper()
	for name, want := range files {
		if got := g.read(name); got != want {
			g.t.Errorf("%s: %s of %s is %q, want %q", what, name, g.id, got, want)
		}
	}
}

// count is a counter in one of its files.
func (g group) count(name, counter string) int {
	g.t.Helper()
	for line := range strings.Lines(g.read(name)) {
		if text, found := strings.CutPrefix(line, counter+" "); found {
			return must.Get(strconv.Atoi(strings.TrimSpace(text)))(g.t)
		}
	}
	g.t.Fatalf("%s has no %s", name, counter)
	return 0
}

// quota is the container's own, in thousandths of a processor; 0 is none.
func (g group) quota() int {
	g.t.Helper()
	fields := strings.Fields(g.read("cpu.max"))
	if len(fields) != 2 || fields[1] != strconv.Itoa(period) {
		g.t.Fatalf("cpu.max is %q", fields)
	}
	n, _ := strconv.Atoi(fields[0]) // "max"
	return n * 1000 / period
}

// wantScore compares how early its process is ended when memory is out.
func (g group) wantScore(want int) {
	g.t.Helper()
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", g.pid))
	if err != nil || strings.TrimSpace(string(score)) != strconv.Itoa(want) {
		g.t.Errorf("%s: oom_score_adj %q, %v; want %d", g.id, score, err, want)
	}
}
