// SPDX-License-Identifier: Apache-2.0

package cdi

import "github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"

// FindNVML looks for NVML below the root of the driver's files, in the way that
// its libraries are looked for when the spec is made. Empty: there is none, and
// the process's own loader may know better.
func FindNVML(driverRoot string) string {
	found, err := lookup.NewLibraryLocator(lookup.WithRoot(driverRoot)).Locate("libnvidia-ml.so.1")
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[0]
}
