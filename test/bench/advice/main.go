// SPDX-License-Identifier: Apache-2.0

// Command advice learns shares from the first half of a trace of pods, by several rules, and judges them on
// the second half. docs/concepts/sizing.md has the results.
package main

import (
	"flag"
	"fmt"
	"os"

	"vernier.dev/vernier/test/bench/usage"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "advice:", err)
		os.Exit(1)
	}
}

func run() error {
	folder := flag.String("traces", "", "`folder` with pods.csv.gz: t_s, pod, duty_percent, memory_mib")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("%q is no flag; see -help", flag.Arg(0))
	case *folder == "":
		return fmt.Errorf("-traces names the folder of the trace; see -help")
	}
	pods, err := usage.Load(*folder)
	if err != nil {
		return err
	}
	show(os.Stdout, halve(pods))
	return nil
}
