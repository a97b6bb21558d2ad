// SPDX-License-Identifier: Apache-2.0

package view

import model "vernier.dev/vernier/allocator/view"

// The view model, which the page shares.
type (
	Core       = model.Core
	Memory     = model.Memory
	Node       = model.Node
	Device     = model.Device
	Slice      = model.Slice
	WaitingPod = model.WaitingPod
	Need       = model.Need
	Reason     = model.Reason
	Use        = model.Use
)

// What makes it.
var (
	Nodes    = model.Nodes
	Devices  = model.Devices
	Slices   = model.Slices
	Waiting  = model.Waiting
	Uses     = model.Uses
	SortUses = model.SortUses
)
