// SPDX-License-Identifier: Apache-2.0

package device

// ComputeMode says who may have contexts on a device, as NVML counts it.
type ComputeMode int32

// Modes that the agent looks for; there are others.
const (
	// ComputeDefault lets every process.
	ComputeDefault ComputeMode = 0
	// ComputeExclusiveProcess lets one process at a time: the MPS server, whose
	// clients count as it.
	ComputeExclusiveProcess ComputeMode = 3
)
