// SPDX-License-Identifier: Apache-2.0

// Command vernier-allocator places gated pods on nodes and devices. Run two: one
// leads, the other stands by with warm caches.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"vernier.dev/vernier/allocator"
	"vernier.dev/vernier/allocator/kueue"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/version"
	"vernier.dev/vernier/webhook/podtemplate"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vernier-allocator:", err)
		os.Exit(1)
	}
}

func run() error {
	metrics := flag.String("metrics-bind-address", ":8443", "host:port for Prometheus metrics over HTTPS, for tokens whose bearers may get /metrics; 0 for none")
	health := flag.String("health-probe-bind-address", ":8081", "host:port for /healthz and /readyz, 0 for none")
	var o allocator.Options
	o.AddFlags(flag.CommandLine)
	var pods podtemplate.Settings
	pods.AddFlags(flag.CommandLine)
	logging := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logging)
	flag.Var(logging.Lookup("v").Value, "v", "log verbosity")
	version.AddFlag(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(klog.NewKlogr())

	rules, err := pods.Rules()
	if err != nil {
		return err
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := allocator.NewManager(cfg, *metrics, *health)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := allocator.Setup(ctx, mgr, o, func(known *classes.Set) kueue.Read { return podtemplate.Admit(rules, known) }); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
