// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/agent"
	"vernier.dev/vernier/nri-plugin/cdi"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/nri-plugin/mode/mps"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// hookTimeout bounds a run of the hook that only says its version.
const hookTimeout = 10 * time.Second

// options are the flags, of the agent and of what it is made from here.
type options struct {
	agent.Options
	kubeconfig, cdiDir, driverRoot, hostDriverRoot string
	nvmlLibrary, cdiHook, mpsCgroup                string
	verbosity                                      int
}

// installHook copies vernier-cdi-hook to where the runtime can run it from, and
// returns that path.
func (o *options) installHook() (string, error) {
	if o.cdiHook == "" {
		return "", nil
	}
	to := filepath.Join(o.StateDir, "lib", "vernier-cdi-hook")
	if err := atomicfile.Install(o.cdiHook, to); err != nil {
		return "", fmt.Errorf("vernier-cdi-hook: %w; set --cdi-hook and --state-dir", err)
	}
	if err := o.tryHook(to); err != nil {
		return "", err
	}
	return to, nil
}

// tryHook runs the hook once where the runtime will: in the node's own root. It
// is cgo, and a node whose C library is too old for it would fail every container
// with a slice instead.
func (o *options) tryHook(hook string) error {
	if o.hostDriverRoot != "/" {
		// The driver has a root of its own, and the node's is not to be seen.
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), hookTimeout)
	defer cancel()
	try := exec.CommandContext(ctx, hook, "--version")
	try.Dir = "/"
	if o.driverRoot != "/" {
		try.SysProcAttr = &syscall.SysProcAttr{Chroot: o.driverRoot}
	}
	if said, err := try.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not run on the node: %w: %s. It needs glibc 2.34 or newer there: update the node, or set --cdi-hook to one that was built for it", hook, err, bytes.TrimSpace(said))
	}
	return nil
}

// gpus joins NVML and the CDI specs that are made from it.
type gpus struct {
	options *options
	hook    string
	cgroups error
	log     logr.Logger
	specs   *cdi.Writer
	// refused is the library that could not be opened.
	refused inventory.Fingerprint
}

func (g *gpus) open() (device.Library, error) {
	library := g.library()
	if err := g.another(library); err != nil {
		return nil, err
	}
	inv, lib, err := inventory.Open(inventory.Options{Library: library, CgroupV2: g.cgroups})
	if err != nil {
		return nil, err
	}
	g.specs, err = cdi.New(lib, cdi.Options{
		Dir:            g.options.cdiDir,
		DriverRoot:     g.options.driverRoot,
		HostDriverRoot: g.options.hostDriverRoot,
		DevRoot:        g.options.DevRoot,
		Hook:           g.hook,
		Log:            g.log,
	})
	if err != nil {
		return nil, err
	}
	return inv, nil
}

// library is NVML's file.
func (g *gpus) library() string {
	if g.options.nvmlLibrary != "" {
		return g.options.nvmlLibrary
	}
	return cdi.FindNVML(g.options.driverRoot)
}

// another reports whether the library is another file than the one that an attempt
// before has loaded: the loader goes on giving this process that one by the path.
func (g *gpus) another(library string) error {
	before := g.refused
	g.refused = inventory.FingerprintOf(library)
	if before != (inventory.Fingerprint{}) && g.refused != before {
		return fmt.Errorf("the driver's library %s was replaced: %w", library, device.ErrReplaced)
	}
	return nil
}

// mps finds the driver's MPS control daemon. It runs in the node's root where that is
// the driver's; a driver with a root of its own has no C library there.
func (g *gpus) mps() (mps.Daemons, error) {
	o := g.options
	program, err := mps.FindProgram(o.driverRoot, filepath.Dir(g.library()))
	if err != nil {
		return nil, err
	}
	if o.hostDriverRoot == "/" && o.driverRoot != "/" {
		program.InRoot(o.driverRoot)
	}
	if g.cgroups == nil {
		program.Cgroup = o.mpsCgroup
	}
	return program, nil
}

// refine is only called after open.
func (g *gpus) refine(s *device.Snapshot) { g.specs.Refine(s) }
