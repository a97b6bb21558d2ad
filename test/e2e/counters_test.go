// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// countersOf are the mounts of counters on the node for a pod's containers, as the node
// agent sees them.
func countersOf(t *testing.T, uid string) (found []string) {
	t.Helper()
	node := sys.Node(small)
	all := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", node.Agent.ID().PID)))(t)
	for line := range strings.Lines(string(all)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, filepath.Join(node.Dir(), "vernier", uid)+"/") {
			found = append(found, at)
		}
	}
	return found
}

// A container can write no more into its counters than they are long, makes no file beside
// them, and harms nobody by what it writes; they stay over a restart of the agent, and go
// with the pod.
func TestHostileCounters(t *testing.T) {
	p := awaitReady(t, create(t, newPod("writer").share(10, 10).args("--hold").on(small)))
	neighbour := awaitReady(t, create(t, newPod("neighbour").share(10, 10).args("--hold").on(small)))
	uid := string(p.UID)
	if got := countersOf(t, uid); len(got) == 0 {
		t.Fatal("the counters are no mount")
	}
	kill(t, sys.Node(small).Agent)
	start(t, sys.Node(small).Agent)
	await(t, "the next agent to see the mount", func() (bool, string) { // its process enters the node's namespaces first
		left := countersOf(t, uid)
		return len(left) > 0, fmt.Sprint(left)
	})
	run := func(script string) (string, error) {
		return sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/sh", "-c", script+" 2>&1")
	}
	if text, err := run("cudademo --alloc 10"); err != nil || parse(text)["alloc.ok"] != "1" {
		t.Errorf("after the agent's restart: %s, %v", text, err)
	}
	if text, err := run("echo >/usr/local/vernier/other"); err == nil {
		t.Errorf("a file was made beside the counters: %s", text)
	}
	text, _ := run("busybox dd if=/dev/zero of=/usr/local/vernier/counters bs=1M count=800; busybox wc -c /usr/local/vernier/counters")
	var size int64
	for line := range strings.Lines(text) {
		if strings.Contains(line, "/usr/local/vernier/counters") && !strings.Contains(line, ":") {
			_, _ = fmt.Sscan(line, &size)
		}
	}
	if size == 0 || size > 4<<20 {
		t.Errorf("%d bytes were written: %s", size, text)
	}
	text, err := sys.Cluster.Exec(t.Context(), neighbour.Namespace, neighbour.Name, "main", "/bin/sh", "-c", "cudademo --alloc 10 2>&1")
	if err != nil || parse(text)["alloc.ok"] != "1" {
		t.Errorf("beside it: %s, %v", text, err)
	}
	awaitReady(t, create(t, newPod("next").share(10, 10).args("--hold").on(small)))
	remove(t, p)
	await(t, "its mounts to go", func() (bool, string) {
		left := countersOf(t, uid)
		return len(left) == 0, fmt.Sprint(left)
	})
}
