// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/cluster/tools"
)

func preflight() *cobra.Command {
	var cfg cluster.Config
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Say what this machine lacks for a cluster, each with its remedy; fail if anything",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if problems := cluster.Preflight(cfg); len(problems) > 0 {
				return problems
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&cfg.Dir, "dir", cluster.DefaultDir, "the folder that the cluster would use")
	return cmd
}

func assets() *cobra.Command {
	guests := false
	cmd := &cobra.Command{
		Use:   "assets",
		Short: "Build what the cache lacks and print the folder for KUBEBUILDER_ASSETS",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := cluster.EnvtestAssets(cmd.Context(), os.Stderr)
			if err != nil {
				return err
			}
			// The rest too, so that a later `up` starts at once.
			all := tools.All
			if guests {
				all = slices.Concat(all, tools.Guests)
			}
			if _, err := tools.Ensure(cmd.Context(), os.Stderr, all...); err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
	cmd.Flags().BoolVar(&guests, "guests", false, "also what runs on a cluster in some tests: Kueue, the controllers of jobs, Karpenter")
	return cmd
}

func toolsInto() *cobra.Command {
	return &cobra.Command{
		Use:   "tools FOLDER",
		Short: "Copy the cluster's programs into a folder, which " + tools.ReadyVariable + " names on a machine without Go",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := tools.Ensure(cmd.Context(), os.Stderr, tools.All...)
			if err != nil {
				return err
			}
			for i, dir := range dirs {
				if err := os.CopyFS(filepath.Join(args[0], tools.All[i].Name), os.DirFS(dir)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func up() *cobra.Command {
	cfg := cluster.Config{Progress: os.Stderr}
	var names []string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster and leave it up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range names {
				cfg.Nodes = append(cfg.Nodes, cluster.NodeConfig{Name: n})
			}
			c, err := cluster.Up(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if err := c.Keep(); err != nil {
				return err
			}
			fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
			return nil
		},
	}
	cmd.Flags().StringVar(&cfg.Dir, "dir", cluster.DefaultDir, "the folder for all that the cluster writes")
	cmd.Flags().StringVar(&cfg.LogDir, "log-dir", "", "a folder for the logs that `down` leaves (default: below --dir, removed with it)")
	cmd.Flags().StringSliceVar(&names, "node", []string{"gpu-1"}, "the name of a node; again for more")
	return cmd
}

func down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster, or remove what a killed one left",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cluster.Remove(cmd.Context()) },
	}
}
