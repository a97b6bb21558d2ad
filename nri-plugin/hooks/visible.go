// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
)

// maskVisibleDevices has NVIDIA's runtimes give the container nothing, with slices as well: the
// devices come by CDI, and a runtime must not add what the variable would name.
//
// The runtime lists the image's and the pod's environment one after the other,
// and NRI replaces the first entry of a name only: a second one would win over
// ours, so it must itself ask for nothing.
func maskVisibleDevices(c *api.Container, adjust *api.ContainerAdjustment) error {
	times, last := 0, ""
	for _, entry := range c.GetEnv() {
		if name, value, _ := strings.Cut(entry, "="); name == v1alpha1.EnvVisibleDevices {
			times, last = times+1, value
		}
	}
	if times > 1 && last != v1alpha1.EnvVisibleDevicesVoid && last != "none" && last != "" {
		return fmt.Errorf("%s is set more than once, by the image and by the pod, and the last one asks for %q. Remove it from the pod (ask for a share of a GPU instead), or set it to %q there",
			v1alpha1.EnvVisibleDevices, last, v1alpha1.EnvVisibleDevicesVoid)
	}
	adjust.AddEnv(v1alpha1.EnvVisibleDevices, v1alpha1.EnvVisibleDevicesVoid)
	return nil
}
