// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"vernier.dev/vernier/api/v1alpha1"
)

// ReadSpec reads the CDI spec that the node agent has written into a folder.
func ReadSpec(dir string) (spec specs.Spec, err error) {
	text, err := os.ReadFile(filepath.Join(dir, v1alpha1.CDIVendor+"-"+v1alpha1.CDIClass+".json"))
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	return spec, err
}

// CheckSpec finds what is wrong with a spec of that many devices: it names what is there, and
// nothing that is not. nvcdi leaves out what it does not find, and a container would start
// without its GPU.
func CheckSpec(spec specs.Spec, devices int) (wrong error) {
	add := func(format string, a ...any) { wrong = errors.Join(wrong, fmt.Errorf(format, a...)) }
	if len(spec.Devices) != devices {
		add("the spec has %d devices, want the %d usable ones", len(spec.Devices), devices)
	}
	edits := []specs.ContainerEdits{spec.ContainerEdits}
	for _, d := range spec.Devices {
		if len(d.ContainerEdits.DeviceNodes) == 0 {
			add("device %s of the spec has no device node", d.Name)
		}
		edits = append(edits, d.ContainerEdits)
	}
	exists := func(host, container string) {
		if _, err := os.Stat(cmp.Or(host, container)); err != nil {
			add("the spec gives containers %s: %w", container, err)
		}
	}
	libcuda := false
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			exists(n.HostPath, n.Path)
		}
		for _, mount := range e.Mounts {
			exists(mount.HostPath, mount.ContainerPath)
			libcuda = libcuda || strings.HasPrefix(filepath.Base(mount.ContainerPath), "libcuda.so.")
		}
	}
	if !libcuda {
		add("the spec gives containers no libcuda.so")
	}
	return wrong
}
