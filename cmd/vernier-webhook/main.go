// SPDX-License-Identifier: Apache-2.0

// Command vernier-webhook admits pods that ask for shares of GPUs: it refuses
// what cannot be and writes down exactly what is asked for. Run two.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"vernier.dev/vernier/api/version"
	"vernier.dev/vernier/webhook"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vernier-webhook:", err)
		os.Exit(1)
	}
}

func run() error {
	var o webhook.Options
	flag.IntVar(&o.Port, "port", 9443, "port of the admission server")
	flag.StringVar(&o.CertDir, "cert-dir", "", "folder with tls.crt and tls.key that somebody else makes and renews; "+
		"without it the webhook makes its own certificates and writes the caBundle")
	flag.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8443", "host:port for Prometheus metrics over HTTPS, for tokens whose bearers may get /metrics; 0 for none")
	flag.StringVar(&o.HealthAddress, "health-probe-bind-address", ":8081", "host:port for /healthz and /readyz, 0 for none")
	o.AddFlags(flag.CommandLine)
	logging := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logging)
	flag.Var(logging.Lookup("v").Value, "v", "log verbosity")
	version.AddFlag(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(klog.NewKlogr())

	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := webhook.New(cfg, o)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
