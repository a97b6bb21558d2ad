// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/cdi"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hostfile"
	"vernier.dev/vernier/nri-plugin/inventory"
)

// options are the flags.
type options struct {
	node, kubeconfig, nriSocket         string
	cdiDir, stateDir                    string
	driverRoot, hostDriverRoot, devRoot string
	nvmlLibrary                         string
	limiterLibrary, cdiHook             string
	metricsAddr, healthAddr             string
	verbosity                           int
}

// installHook copies nvidia-cdi-hook to where the runtime can run it from, and
// returns that path.
func (o *options) installHook() (string, error) {
	if o.cdiHook == "" {
		return "", nil
	}
	to := filepath.Join(o.stateDir, "lib", "nvidia-cdi-hook")
	if err := hostfile.Install(o.cdiHook, to); err != nil {
		return "", fmt.Errorf("nvidia-cdi-hook: %w; set --nvidia-cdi-hook and --state-dir", err)
	}
	return to, nil
}

// gpus joins NVML and the CDI specs that are made from it.
type gpus struct {
	options *options
	hook    string
	cgroups error
	log     logr.Logger
	specs   *cdi.Writer
}

func (g *gpus) open() (device.Library, error) {
	library := g.options.nvmlLibrary
	if library == "" {
		library = cdi.FindNVML(g.options.driverRoot)
	}
	inv, lib, err := inventory.Open(inventory.Options{Library: library, CgroupV2: g.cgroups})
	if err != nil {
		return nil, err
	}
	g.specs, err = cdi.New(lib, cdi.Options{
		Dir:            g.options.cdiDir,
		DriverRoot:     g.options.driverRoot,
		HostDriverRoot: g.options.hostDriverRoot,
		DevRoot:        g.options.devRoot,
		Hook:           g.hook,
		Log:            g.log,
	})
	if err != nil {
		return nil, err
	}
	return inv, nil
}

// refine is only called after open.
func (g *gpus) refine(s *device.Snapshot) { g.specs.Refine(s) }
