// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// driver is one branch of NVIDIA's, unpacked.
type driver struct {
	root, version string
}

// cuda is the folder with its libraries, and with the CUDA runtime.
func (d driver) lib() string { return filepath.Join(d.root, "lib") }

func (d driver) control() string { return filepath.Join(d.root, "usr/bin/nvidia-cuda-mps-control") }
func (d driver) smi() string     { return filepath.Join(d.root, "usr/lib/nvidia/current/nvidia-smi") }
func (d driver) branch() string  { return filepath.Base(d.root) }

// drivers are all that Debian has, the oldest first.
var drivers []driver

func TestMain(m *testing.M) {
	unpack := exec.Command("./unpack")
	unpack.Stderr = os.Stderr
	cache, err := unpack.Output()
	if err != nil {
		os.Stderr.WriteString("unpacking NVIDIA's packages: " + err.Error() + "\n")
		os.Exit(1)
	}
	roots, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(cache)), "*"))
	for _, root := range roots {
		version, err := os.ReadFile(filepath.Join(root, "version"))
		if err != nil {
			panic(err)
		}
		drivers = append(drivers, driver{root, strings.TrimSpace(string(version))})
	}
	os.Exit(m.Run())
}

// each runs a test beside every driver.
func each(t *testing.T, test func(t *testing.T, d driver)) {
	if len(drivers) == 0 {
		t.Fatal("no driver was unpacked")
	}
	for _, d := range drivers {
		t.Run(d.version, func(t *testing.T) { test(t, d) })
	}
}
