// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"vernier.dev/vernier/test/cluster"
)

// attached is a command that needs the cluster that is up.
func attached(use, short string, args cobra.PositionalArgs, run func(*cluster.Cluster, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		c, err := cluster.Attach(cmd.Context())
		if err != nil {
			return err
		}
		return run(c, args)
	}}
}

func status() *cobra.Command {
	return attached("status", "Show the processes of the cluster", cobra.NoArgs, func(c *cluster.Cluster, _ []string) error {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "PROCESS\tSTATE\tPID\tPLACE\tLOG")
		for _, p := range c.Processes() {
			state, place := "ended", p.Place
			if p.Running() {
				state = "running"
			}
			if place == "" {
				place = c.ControlPlane.Name
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", p.Name, state, p.ID().PID, place, p.Log)
		}
		return w.Flush()
	})
}

func logs() *cobra.Command {
	return attached("logs NAME", "Print the log of a process, as `status` names it", cobra.ExactArgs(1), func(c *cluster.Cluster, args []string) error {
		p := c.Process(args[0])
		if p == nil {
			return fmt.Errorf("there is no process %q: see `vernier-cluster status`", args[0])
		}
		f, err := os.Open(p.Log)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(os.Stdout, f)
		return err
	})
}

func kubeconfig() *cobra.Command {
	return attached("kubeconfig", "Print the path of the administrator's kubeconfig", cobra.NoArgs, func(c *cluster.Cluster, _ []string) error {
		fmt.Println(c.Kubeconfig())
		return nil
	})
}

func env() *cobra.Command {
	return attached("env", "Print shell settings for kubectl and ctr: eval \"$(vernier-cluster env)\"", cobra.NoArgs, func(c *cluster.Cluster, _ []string) error {
		fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
		fmt.Printf("export CONTAINERD_ADDRESS=%s CONTAINERD_NAMESPACE=k8s.io\n", c.Nodes[0].ContainerdSocket())
		fmt.Printf("export PATH=%s:$PATH\n", c.BinPath())
		return nil
	})
}

func enter() *cobra.Command {
	return attached("enter PLACE COMMAND...", "Run a command in the network of a node, or of the control plane", cobra.MinimumNArgs(2), func(c *cluster.Cluster, args []string) error {
		place := c.Place(args[0])
		if place == nil {
			return fmt.Errorf("there is no place %q: see `vernier-cluster status`", args[0])
		}
		argv := place.Argv(args[1:]...)
		path, err := exec.LookPath(argv[0])
		if err != nil {
			return err
		}
		return syscall.Exec(path, argv, os.Environ())
	})
}
