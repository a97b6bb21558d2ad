// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Illness is why a slice is on an unhealthy device or instance.
type Illness struct {
	// Reason is a word, for programs, and Message says of what, and why.
	Reason, Message string
}

// Reasons of an Illness, and of what it was once all is healthy again.
const (
	ReasonUnhealthy = "GPUUnhealthy"
	ReasonMissing   = "GPUMissing"
	ReasonInstance  = "MIGInstanceUnhealthy"
	ReasonTopology  = "TopologyLost"
	ReasonRecovered = "GPURecovered"
)

// Healthy reports whether nothing is wrong with a device or any instance of it, so that
// nothing can be with a slice there.
func Healthy(ledger *v1alpha1.SliceLedger, uuid string) bool {
	for i := range ledger.Status.Devices {
		if d := &ledger.Status.Devices[i]; d.UUID == uuid {
			return d.Healthy && !slices.ContainsFunc(d.Instances, func(i v1alpha1.MIGInstance) bool { return i.Reason != "" })
		}
	}
	return false
}

// Unhealthy tells what is wrong with what a slice is on; false when nothing is.
func Unhealthy(ledger *v1alpha1.SliceLedger, uuid string, s *v1alpha1.Slice) (Illness, bool) {
	i := slices.IndexFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid })
	if i < 0 {
		return Illness{ReasonMissing, fmt.Sprintf("node %s does not see %s any more", ledger.Name, uuid)}, true
	}
	d := &ledger.Status.Devices[i]
	name := fmt.Sprintf("GPU %d (%s) of node %s", d.Index, uuid, ledger.Name)
	if !d.Healthy {
		return Illness{ReasonUnhealthy, fmt.Sprintf("%s is unhealthy: %s", name, d.Reason)}, true
	}
	if s.MIG == nil {
		return Illness{}, false
	}
	for _, on := range d.Instances {
		if on.MIGPlace == *s.MIG && on.Reason != "" {
			return Illness{ReasonInstance, fmt.Sprintf("the MIG instance at %d of %s is unhealthy: %s", on.Start, name, on.Reason)}, true
		}
	}
	return Illness{}, false
}
