// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"cmp"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/nri-plugin/cdi"
)

// find looks where the node agent looks. VERNIER_DRIVER_ROOT and VERNIER_DEV_ROOT
// say otherwise, as its flags do: /run/nvidia/driver for NVIDIA's driver container.
func find(*testing.T) machine {
	m := machine{driverRoot: cmp.Or(os.Getenv("VERNIER_DRIVER_ROOT"), "/"), devRoot: cmp.Or(os.Getenv("VERNIER_DEV_ROOT"), "/")}
	m.nvml = cdi.FindNVML(m.driverRoot)
	return m
}

func withoutRoot(t *testing.T) {
	t.Helper()
	t.Fatal("installing the library as in a container takes a mount namespace: run as root")
}

// The devices are those that NVIDIA's own tool shows.
func TestNvidiaSMI(t *testing.T) {
	_, _, _, now := look(t)
	out, err := exec.Command("nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		t.Fatalf("nvidia-smi: %v: install the driver's tools, to compare with them", err)
	}
	var want, got []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		want = append(want, strings.TrimSpace(line))
	}
	for _, d := range now.Devices {
		got = append(got, d.UUID+", "+d.Model+", "+now.Driver.Version)
	}
	if !slices.Equal(got, want) {
		t.Errorf("we see\n%s\nnvidia-smi sees\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
