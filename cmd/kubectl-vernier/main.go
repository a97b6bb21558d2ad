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

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// What goes wrong in a tunnel to an agent is an error of who reads through it, and need
	// not be logged on the screen as well.
	utilruntime.ErrorHandlers = nil
	// The same holds for the scheduler's filters, and the informers that fill them.
	klog.SetLogger(logr.Discard())
	if err := cli.New(os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(cli.Escaped(os.Stderr), "error:", err)
		os.Exit(1)
	}
}
