// SPDX-License-Identifier: Apache-2.0

// The vernier-cluster program builds, starts, shows and stops the real cluster
// that tests and the demo run on.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"vernier.dev/vernier/api/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "vernier-cluster",
		Short:         "A real Kubernetes cluster of one or more nodes on this machine",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(preflight(), assets(), toolsInto(), up(), down(), status(), logs(), kubeconfig(), env(), enter())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vernier-cluster:", err)
		os.Exit(1)
	}
}
