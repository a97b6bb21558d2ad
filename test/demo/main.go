// SPDX-License-Identifier: Apache-2.0

// Command demo owns what `make demo` shows: pods sharing GPUs, simulated or the machine's, on a
// real Kubernetes node, what each of them sees, one that waits and why, and the ledger. It checks nothing that the end-to-end tests don't check better, but it
// fails when something that it shows does not come true.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

const (
	node      = "gpu-1"
	namespace = "team-a"
	// patience bounds each wait of the demo.
	patience = 2 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Warnings to the demo's own client are none of its story.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	keep := os.Getenv("KEEP") == "1"
	scratch, err := os.MkdirTemp("", "vernier-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	rendered, err := renderValues(ctx, filepath.Join(scratch, "manifests"), os.Getenv("SET"))
	if err != nil {
		return err
	}
	gpus, what, err := chosenGPUs(os.Getenv("GPU"))
	if err != nil || slices.Contains(os.Args, "--check") {
		return err
	}
	say("starting etcd, Kubernetes, containerd and Vernier; one node with %s", what)
	sys, err := up(ctx, gpus, rendered)
	defer func() {
		if sys == nil || sys.Cluster == nil || (keep && err == nil) {
			return
		}
		say("stopping what was started")
		err = errors.Join(err, sys.Down())
	}()
	if err != nil {
		return err
	}
	for _, guest := range system.Guests() {
		if os.Getenv(strings.ToUpper(guest)) == "1" {
			say("installing %s", guest)
			if err := sys.InstallGuest(ctx, guest, fairSharing...); err != nil {
				return err
			}
		}
	}
	if err := sys.Namespaces(ctx, map[string]bool{namespace: true}); err != nil {
		return err
	}
	if err := story(ctx, sys); err != nil {
		return err
	}
	if !keep {
		say("done. `make demo KEEP=1` leaves the cluster up, and prints a pod to paste, the page's address and the kubeconfig")
		return nil
	}
	text, err := handOver(ctx, sys)
	if err != nil {
		return err
	}
	if err := sys.Cluster.Keep(); err != nil {
		return err
	}
	say("the cluster stays up: paste what you like of this")
	fmt.Print(text)
	return nil
}

// fairSharing edits Kueue's configuration: it shares by weights and by past use, which it looks at each second.
var fairSharing = []string{"\n    integrations:\n", `
    fairSharing:
      preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]
    admissionFairSharing:
      usageHalfLifeTime: 10m
      usageSamplingInterval: 1s
    integrations:
`}

// simulated is the node unless another is chosen: linked by NVLink, below one PCIe switch.
var simulated = system.NodeOptions{Name: node, GPUs: simgpu.GPU{Model: simgpu.A100, Count: 2, PCIe: "0.1", Switches: 1}}

// chosenGPUs is the node that GPU=NAME chooses, and what its GPUs are.
func chosenGPUs(name string) (n system.NodeOptions, what string, err error) {
	switch name {
	case "", "simulated":
		return simulated, "two simulated A100", nil
	case "real":
		root, err := system.FindDriver()
		if err != nil {
			err = fmt.Errorf("GPU=real: %w. Without GPU=real the demo simulates GPUs", err)
		}
		return system.NodeOptions{Name: node, DriverRoot: root}, "this machine's GPUs", err
	}
	return n, "", fmt.Errorf("GPU=%s: want real or simulated", name)
}

func up(ctx context.Context, gpus system.NodeOptions, rendered manifests.Folder) (*system.System, error) {
	return system.Up(ctx, system.Options{Name: "demo", Nodes: []system.NodeOptions{gpus}, Manifests: rendered, Progress: os.Stdout})
}

func say(format string, a ...any) { fmt.Println("\n" + bold("▸ "+fmt.Sprintf(format, a...))) }

// bold sets the text off from others, on a terminal.
func bold(text string) string {
	if term.IsTerminal(int(os.Stdout.Fd())) {
		return "\033[1m" + text + "\033[0m"
	}
	return text
}
