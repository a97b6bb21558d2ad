// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MIGSlices is the number of memory slices that a device has at most: what MIG
// cuts a device into, and what instances lie on.
const MIGSlices = 8

// MIGPlace is where an instance of MIG lies on its device, and of which kind it is.
// It names the instance: whatever is made there again is the same instance to us,
// although the driver gives it another UUID.
//
// +kubebuilder:validation:XValidation:rule="self.start + self.size <= 8",message="the instance ends beyond the device"
type MIGPlace struct {
	// Profile is NVML's id of the kind, such as 19 for the smallest on an H200.
	// +kubebuilder:validation:Minimum=0
	Profile int32 `json:"profile"`
	// Start is the first memory slice that it takes.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	Start int32 `json:"start"`
	// Size is how many memory slices it takes.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	Size int32 `json:"size"`
}

// Overlaps reports whether two instances would share a memory slice.
func (p MIGPlace) Overlaps(q MIGPlace) bool {
	return p.Start < q.Start+q.Size && q.Start < p.Start+p.Size
}

// MIGProfile is a kind of instance that a device can be cut into.
type MIGProfile struct {
	// ID is NVML's.
	ID int32 `json:"id"`
	// Core is its part of the device's compute in percent, rounded down.
	Core Percent `json:"core"`
	// Mem is its memory in MiB.
	Mem MiB `json:"mem"`
	// Size is how many memory slices it takes.
	Size int32 `json:"size"`
	// Starts are the memory slices at which it may begin.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Starts []int32 `json:"starts"`
	// Max is how many of the kind the device takes.
	Max int32 `json:"max"`
}

// Place is the profile's instance that begins at that memory slice.
func (p *MIGProfile) Place(start int32) MIGPlace {
	return MIGPlace{Profile: p.ID, Start: start, Size: p.Size}
}

// MIGInstance is an instance that there is.
type MIGInstance struct {
	MIGPlace `json:",inline"`
	// UUID under which programs reach it; empty while it is not whole, or cut up
	// further by its creator.
	// +optional
	UUID string `json:"uuid,omitempty"`
	// Own: the node agent has made it, and destroys it when no slice is on it. Any
	// other is used where it fits, and never destroyed.
	// +optional
	Own bool `json:"own,omitempty"`
	// Reason why it is unhealthy, in words; empty while it is healthy. Nothing new is granted
	// on an instance that is not.
	// +optional
	Reason string `json:"reason,omitempty"`
}
