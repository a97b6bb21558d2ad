// SPDX-License-Identifier: Apache-2.0

// Command gpu-cluster brings up Kubernetes with Vernier on a machine with an NVIDIA GPU, runs
// pods with shares on it, and reports what held. It needs NVIDIA's driver, root, an x86-64
// Linux with glibc 2.34 and a shell: neither network nor packages. It comes with parts, which
// `make gpu-cluster` packs and `gpu-cluster add` unpacks.
//
// Invariants:
//   - Nothing of the card is changed: no compute mode, no MIG, no clocks.
//   - Everything is taken down at the end, also after a failure and by Ctrl-C.
//   - The report is complete after every row.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const usage = `usage:
  gpu-cluster add PART...   check parts and unpack them; all may be given at once, or one at a time
  gpu-cluster run           bring up the cluster, run the rows, take it down
  gpu-cluster down          take down what --keep, or a killed run, left
  gpu-cluster pack FROM TO  make the parts of a folder

flags, after the verb:
`

func main() {
	var o options
	flags := flag.NewFlagSet("gpu-cluster", flag.ExitOnError)
	flags.StringVar(&o.dir, "dir", "/var/tmp/vernier-gpu-cluster", "the `folder` in which add unpacks and run finds it")
	flags.StringVar(&o.report, "report", "gpu-cluster.json", "run: `file` of the JSON report; it is replaced")
	flags.StringVar(&o.only, "only", "", "run: comma-separated `rows` (default: all)")
	flags.BoolVar(&o.keep, "keep", false, "run: leave the cluster up, and say how to use it")
	flags.BoolVar(&o.simulated, "simulated", false, "run: on a simulated GPU, without a driver")
	flags.BoolVar(&o.fast, "fast", false, "pack: compress little")
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flags.PrintDefaults()
		fmt.Fprintln(os.Stderr, "\nrows:")
		for _, r := range rows {
			fmt.Fprintf(os.Stderr, "  %-20s %s\n", r.Name, r.Promise)
		}
	}
	if len(os.Args) < 2 {
		flags.Usage()
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:]) // it ends the program itself
	code := 0
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-cluster:", err)
		os.Exit(2)
	}
	switch verb := os.Args[1]; verb {
	case "pack":
		err = pack(flags.Arg(0), flags.Arg(1), o.fast)
	case "add":
		err = o.add(flags.Args())
	case "run":
		code, err = o.run()
	case "down":
		err = o.down()
	default:
		flags.Usage()
		err = fmt.Errorf("%s is no verb of it", verb)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-cluster:", err)
		code = 2
	}
	os.Exit(code)
}

type options struct {
	dir, report, only     string
	keep, simulated, fast bool
}

// root is where the parts are once they are unpacked: a folder like the repository's.
func (o *options) root() string { return filepath.Join(o.dir, "root") }

// chosen are the rows that --only names, or all.
func (o *options) chosen() ([]row, error) {
	if o.only == "" {
		return rows, nil
	}
	var chosen []row
	for _, name := range strings.Split(o.only, ",") {
		found := false
		for _, r := range rows {
			if r.Name == name {
				chosen, found = append(chosen, r), true
			}
		}
		if !found {
			return nil, fmt.Errorf("--only: there is no row %q; gpu-cluster run --help lists them", name)
		}
	}
	return chosen, nil
}
