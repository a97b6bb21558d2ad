// SPDX-License-Identifier: Apache-2.0

// The pause program holds namespaces open and reaps what is reparented to it,
// as process 1 of a pod's sandbox and as the keeper of a node's namespaces. It
// does nothing else, ignores its arguments and ends at SIGTERM or SIGINT.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
