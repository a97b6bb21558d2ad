// SPDX-License-Identifier: Apache-2.0

// Command vernier-node is the node agent: one runs on every GPU node. It is the
// only program of Vernier's that links NVML.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	ctrl "sigs.k8s.io/controller-runtime"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/api/version"
	"vernier.dev/vernier/nri-plugin/agent"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/rdma"
)

func main() {
	if err := run(); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "vernier-node:", err)
		os.Exit(1)
	}
}

func run() error {
	o, err := parse(os.Args[1:], os.Getenv)
	if err != nil {
		return err
	}
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(o.verbosity)))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reaching the API server: %w; set --kubeconfig", err)
	}
	hook, err := o.installHook()
	if err != nil {
		return err
	}
	found, noCgroups := cgroup.New("/proc")
	if noCgroups == nil {
		o.Leaf = found.Leaf
	}
	processors, err := cgroup.NewProcessors("/proc")
	if err != nil {
		return err
	}
	o.Processors, o.Pressure = processors, processors.Pressure
	if !processors.V2() {
		o.PodCPUs = processors.PodCPUs
	}
	gpus := &gpus{options: o, hook: hook, cgroups: noCgroups, log: log.WithName("cdi")}
	o.Config, o.Log, o.Open, o.Refine, o.MPS = config, log, gpus.open, gpus.refine, gpus.mps
	return agent.Run(ctrl.SetupSignalHandler(), o.Options)
}

// parse reads the flags; every one has the default of an ordinary node.
func parse(args []string, env func(string) string) (*options, error) {
	o := &options{Options: agent.Options{RDMA: rdma.Host{Proc: "/proc", Dev: "/dev"}}}
	f := flag.NewFlagSet("vernier-node", flag.ContinueOnError)
	f.StringVar(&o.Node, "node-name", env("NODE_NAME"), "name of this node (default: environment NODE_NAME)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; empty uses the pod's service account")
	f.StringVar(&o.NRISocket, "nri-socket", "/var/run/nri/nri.sock", "the container runtime's NRI socket")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "folder in which the container runtime looks for CDI specs")
	f.StringVar(&o.StateDir, "state-dir", "/var/lib/vernier", "folder for the limits of containers; must have the same path for the container runtime")
	f.StringVar(&o.driverRoot, "driver-root", "/", "root of the NVIDIA driver's files, as seen here")
	f.StringVar(&o.hostDriverRoot, "host-driver-root", "", "the same root, as the container runtime sees it (default: --driver-root)")
	f.StringVar(&o.DevRoot, "dev-root", "/", "parent of the /dev that has the driver's device nodes")
	f.StringVar(&o.Sysfs, "sys-dir", filepath.Join("/proc/1/root", "sys"), "sysfs in which NUMA nodes and RDMA devices are looked for. That of the node's first process shows them also where each network namespace has its own")
	f.StringVar(&o.nvmlLibrary, "nvml-library", "", "path of libnvidia-ml.so.1 (default: searched below --driver-root)")
	f.StringVar(&o.LimiterLibrary, "limiter-library", "/opt/vernier/libvgpu.so", "libvgpu.so to install into --state-dir")
	f.StringVar(&o.cdiHook, "cdi-hook", "/opt/vernier/vernier-cdi-hook", "vernier-cdi-hook to install into --state-dir; empty writes CDI specs without hooks")
	f.StringVar(&o.mpsCgroup, "mps-cgroup", "/sys/fs/cgroup/vernier-mps", "cgroup v2 directory for MPS control daemons, which must outlive the agent's container; empty leaves them in the agent's")
	f.DurationVar(&o.ShrinkNotice, "shrink-notice", 0, "how long programs have to free memory for a smaller share, before its resize is refused; 0 is not at all")
	opportunisticCPU := f.Int("opportunistic-cpu", 80, "percent of the node's processors up to which opportunistic containers may use what others leave, 1 to 100")
	f.DurationVar(&o.IdleAfter, "idle-after", 30*time.Minute, "how long a slice does no work before the ledger says so, as a `duration`: 5m at most; 0 never says it")
	f.BoolVar(&o.EndDeviceHolders, "end-device-holders", false, "end processes of containers that hold a GPU's device by a descriptor that they were passed, without a slice of that GPU. By default they are only reported")
	f.BoolVar(&o.LendMemory, "lend-memory", false, "let idle slices have memory that other containers were promised and do not use. Allocations of these may take up to 2 s then")
	f.BoolVar(&o.EndUnenforced, "end-unenforced", false, "end processes of containers that use a GPU and that no limit holds, as statically linked programs; by default they are only reported")
	f.BoolVar(&o.RDMA.Inject, "inject-rdma", false, "give containers the device nodes of RDMA devices near their GPUs where their pods ask for them. With these a program reaches the network as the node does")
	f.BoolVar(&o.BindCPUs, "numa-binding", false, "bind containers of pods that ask for vernier.dev/topology: numa or pcie to the CPUs of their GPUs' NUMA node. The kubelet must give them none (CPU manager policy none)")
	f.StringVar(&o.MetricsAddr, "metrics-addr", "0", "address to serve metrics on over HTTPS, for tokens whose bearers may get /metrics; 0 serves none")
	f.StringVar(&o.HealthAddr, "health-addr", "0", "address to serve /healthz and /readyz on; 0 serves none")
	f.IntVar(&o.verbosity, "v", 0, "how much to log: 0 decisions, 1 the runtime's events, 2 everything")
	version.AddFlag(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.hostDriverRoot = cmp.Or(o.hostDriverRoot, o.driverRoot)
	o.RDMA.Sys, o.OpportunisticCPU = o.Sysfs, v1alpha1.Percent(*opportunisticCPU)
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case *opportunisticCPU < 1 || *opportunisticCPU > 100:
		return nil, fmt.Errorf("--opportunistic-cpu=%d: set 1 to 100", *opportunisticCPU)
	case o.IdleAfter < 0:
		return nil, fmt.Errorf("--idle-after=%v: set a duration such as 30m, or 0 for never", o.IdleAfter)
	case o.Node == "":
		return nil, fmt.Errorf("the node's name is not known; set --node-name or environment NODE_NAME")
	}
	return o, nil
}
