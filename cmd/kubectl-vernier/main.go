// SPDX-License-Identifier: Apache-2.0

// Command kubectl-vernier is the kubectl plugin `kubectl vernier`: who has which
// part of which GPU, and who waits for one.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := cli.New(os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
