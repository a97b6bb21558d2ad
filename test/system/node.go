// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/test/cluster"
)

// Node is a node of the cluster with its GPUs and its agent.
type Node struct {
	*cluster.Node
	GPU  *GPUs
	args []string
	// Agent is nil where it runs in a pod.
	Agent *Process
}

// UnreadNRI is how many bytes containerd has sent to the agent that the agent has
// not read: more than none while the agent is frozen means that containerd is
// inside a call to it.
func (n *Node) UnreadNRI() (int, error) {
	argv := n.Argv("ss", "--unix", "--no-header", "--processes", "state", "established")
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return 0, fmt.Errorf("ss: %w", err)
	}
	unread, mine := 0, fmt.Sprintf("pid=%d,", n.Agent.ID().PID)
	for _, line := range strings.Split(string(out), "\n") {
		// Type, Recv-Q, Send-Q, addresses; with a state filter there is no state.
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.Contains(line, mine) {
			continue
		}
		waiting, err := strconv.Atoi(fields[1])
		if err != nil {
			return 0, fmt.Errorf("ss printed %q", line)
		}
		unread += waiting
	}
	return unread, nil
}

// Containers are the runtime's ids of a pod's running containers, each with the
// process that is its first; the sandbox is among them.
func (n *Node) Containers(ctx context.Context, s *System, pod types.UID) (map[string]int, error) {
	ctr := func(args ...string) ([]string, error) {
		argv := append([]string{"PATH=" + s.Path(), "ctr", "--address", n.ContainerdSocket(), "--namespace", "k8s.io"}, args...)
		out, err := exec.CommandContext(ctx, "env", argv...).Output()
		return strings.Split(strings.TrimSpace(string(out)), "\n"), err
	}
	ids, err := ctr("containers", "list", "--quiet", fmt.Sprintf(`labels."io.kubernetes.pod.uid"==%q`, pod))
	if err != nil {
		return nil, fmt.Errorf("ctr containers list: %w", err)
	}
	tasks, err := ctr("tasks", "list")
	if err != nil {
		return nil, fmt.Errorf("ctr tasks list: %w", err)
	}
	running := map[string]int{}
	for _, line := range tasks {
		fields := strings.Fields(line) // id, pid, status
		if len(fields) == 3 && fields[2] == "RUNNING" && slices.Contains(ids, fields[0]) {
			if running[fields[0]], err = strconv.Atoi(fields[1]); err != nil {
				return nil, fmt.Errorf("ctr printed %q", line)
			}
		}
	}
	return running, nil
}
