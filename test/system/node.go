// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"vernier.dev/vernier/test/cluster"
)

// Node is a node of the cluster with its GPUs and its agent.
type Node struct {
	*cluster.Node
	GPU   *GPUs
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
