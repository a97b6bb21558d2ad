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

	"vernier.dev/vernier/test/cluster/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "vernier-cluster",
		Short:         "A real Kubernetes cluster of one or two nodes on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(assets())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vernier-cluster:", err)
		os.Exit(1)
	}
}

func assets() *cobra.Command {
	return &cobra.Command{
		Use:   "assets",
		Short: "Print the folder of etcd, kube-apiserver and kubectl, for KUBEBUILDER_ASSETS; build what is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := tools.Assets(cmd.Context(), os.Stderr)
			if err != nil {
				return err
			}
			// All of them: the build cache is warm now, and a later `up` starts at once.
			if _, err := tools.Ensure(cmd.Context(), os.Stderr, tools.All...); err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
}
