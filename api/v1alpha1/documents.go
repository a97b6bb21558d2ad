// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	kjson "sigs.k8s.io/json"
)

// MaxDocumentBytes bounds an annotation document: all annotations of an object
// may hold 256 KiB together.
const MaxDocumentBytes = 128 << 10

// Shares is the document of AnnotationShares: the exact demand of every
// container that asks for a share. The webhook writes it; nobody changes it
// afterwards.
// +kubebuilder:object:generate=false
type Shares struct {
	// Version is always the API version.
	Version string `json:"version"`
	// Containers is keyed by container name, init containers included.
	Containers map[string]Share `json:"containers"`
}

// Share is what one container asks for, per device.
// +kubebuilder:object:generate=false
type Share struct {
	// GPUs is the number of distinct devices, 1 to MaxContainerDevices.
	GPUs DeviceCount `json:"gpus"`
	// Core is percent of each device's compute, 0 to 100; 0 is no quota.
	Core Percent `json:"core,omitempty"`
	// MemPercent is percent of each device's memory, 1 to 100, or 0 when MemMiB
	// says it.
	MemPercent Percent `json:"memPercent,omitempty"`
	// MemMiB is memory on each device, or 0 when MemPercent says it.
	MemMiB MiB `json:"memMiB,omitempty"`
	// Idle is percent of the device's idle compute, 1 to 100, for an idle slice. It has no Core
	// and one device. 0 for any other.
	Idle Percent `json:"idle,omitempty"`
}

// Memory is the share's memory on a device of the given size.
func (s Share) Memory(device MiB) (MiB, error) {
	if s.MemMiB > 0 {
		return s.MemMiB, nil
	}
	return s.MemPercent.Of(device)
}

// Whole reports whether the share is all of each of its devices, so that it can be
// exclusive.
func (s Share) Whole() bool { return s.Core == WholeGPU && s.MemPercent == WholeGPU }

// Placement is the document of AnnotationPlacement: where the pod's containers
// got their slices. It informs; the ledger decides.
// +kubebuilder:object:generate=false
type Placement struct {
	// Version is always the API version.
	Version string `json:"version"`
	// Node is the node that the pod is pinned to.
	Node string `json:"node"`
	// Containers is keyed by container name.
	Containers map[string]PlacedShare `json:"containers"`
	// Topology is how near to each other the pod's GPUs are, where the pod asks for some
	// topology: the level that was achieved.
	Topology TopologyLevel `json:"topology,omitempty"`
}

// Uses reports whether any container has a slice of the device.
func (p *Placement) Uses(uuid string) bool {
	for _, c := range p.Containers {
		if slices.ContainsFunc(c.Devices, func(d PlacedDevice) bool { return d.UUID == uuid }) {
			return true
		}
	}
	return false
}

// PlacedShare is one container's slices.
// +kubebuilder:object:generate=false
type PlacedShare struct {
	Mode    Mode           `json:"mode"`
	Devices []PlacedDevice `json:"devices"`
	// Resized: the slices have less than the container asks for.
	Resized bool `json:"resized,omitempty"`
}

// PlacedDevice is one slice.
// +kubebuilder:object:generate=false
type PlacedDevice struct {
	UUID string `json:"uuid"`
	// Core is percent of the device's compute; 0 is no quota.
	Core Percent `json:"core,omitempty"`
	// MemMiB is memory on the device.
	MemMiB MiB `json:"memMiB"`
}

// ParseShares decodes and checks a Shares document. Unknown and duplicate fields,
// trailing text and amounts out of range are errors.
func ParseShares(text string) (*Shares, error) {
	return parseDocument(AnnotationShares, text, &Shares{})
}

// ParsePlacement decodes and checks a Placement document, as strictly.
func ParsePlacement(text string) (*Placement, error) {
	return parseDocument(AnnotationPlacement, text, &Placement{})
}

func parseDocument[T interface{ Validate() error }](annotation, text string, doc T) (T, error) {
	err := decode(text, doc)
	if err == nil {
		err = doc.Validate()
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("annotation %s: %w", annotation, err)
	}
	return doc, nil
}

// Encode is the document's one spelling: map keys sorted, no white space.
func (s *Shares) Encode() (string, error) { return encode(s, s.Validate()) }

// Encode is the document's one spelling: map keys sorted, no white space.
func (p *Placement) Encode() (string, error) { return encode(p, p.Validate()) }

// Validate checks every amount.
func (s *Shares) Validate() error {
	if err := header(s.Version, len(s.Containers)); err != nil {
		return err
	}
	return validateAll(s.Containers)
}

// validateAll returns the first error of the containers, by name.
func validateAll[T interface{ validate() error }](containers map[string]T) error {
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		if err := containers[name].validate(); err != nil {
			return fmt.Errorf("containers[%s]: %w", name, err)
		}
	}
	return nil
}

func (s Share) validate() error {
	switch {
	case s.GPUs < 1 || s.GPUs > MaxContainerDevices:
		return fmt.Errorf("gpus %d: %w: from 1 to %d", s.GPUs, ErrRange, MaxContainerDevices)
	case s.Core < 0 || s.Core > WholeGPU:
		return fmt.Errorf("core %d: %w: from 0 to 100", s.Core, ErrRange)
	case s.MemPercent < 0 || s.MemPercent > WholeGPU:
		return fmt.Errorf("memPercent %d: %w: from 0 to 100", s.MemPercent, ErrRange)
	case s.MemMiB < 0 || s.MemMiB > maxMiB:
		return fmt.Errorf("memMiB %d: %w", s.MemMiB, ErrRange)
	case (s.MemPercent == 0) == (s.MemMiB == 0):
		return fmt.Errorf("exactly one of memPercent and memMiB must be set: %w", ErrRange)
	case s.Idle < 0 || s.Idle > WholeGPU:
		return fmt.Errorf("idle %d: %w: from 0 to 100", s.Idle, ErrRange)
	case s.Idle > 0 && (s.Core > 0 || s.MemMiB == 0 || s.GPUs > 1):
		return fmt.Errorf("with idle there is memMiB of one GPU, and no core: %w", ErrRange)
	}
	return nil
}

// Validate checks every amount.
func (p *Placement) Validate() error {
	if err := header(p.Version, len(p.Containers)); err != nil {
		return err
	}
	if p.Node == "" {
		return fmt.Errorf("node is empty: %w", ErrRange)
	}
	return validateAll(p.Containers)
}

func (p PlacedShare) validate() error {
	if !p.Mode.Placeable() {
		return fmt.Errorf("mode %q: %w: limiter, mps, mig or exclusive", p.Mode, ErrRange)
	}
	if len(p.Devices) < 1 || len(p.Devices) > MaxContainerDevices {
		return fmt.Errorf("%d devices: %w: from 1 to %d", len(p.Devices), ErrRange, MaxContainerDevices)
	}
	seen := make(map[string]bool, len(p.Devices))
	for i, d := range p.Devices {
		switch {
		case d.UUID == "" || seen[d.UUID]:
			return fmt.Errorf("devices[%d].uuid %q is empty or named twice: %w", i, d.UUID, ErrRange)
		case d.Core < 0 || d.Core > WholeGPU:
			return fmt.Errorf("devices[%d].core %d: %w: from 0 to 100", i, d.Core, ErrRange)
		case d.MemMiB < 1 || d.MemMiB > maxMiB:
			return fmt.Errorf("devices[%d].memMiB %d: %w", i, d.MemMiB, ErrRange)
		}
		seen[d.UUID] = true
	}
	return nil
}

func header(version string, containers int) error {
	if version != Version {
		return fmt.Errorf("version %q is not supported, want %q", version, Version)
	}
	if containers == 0 {
		return fmt.Errorf("no containers: %w", ErrRange)
	}
	return nil
}

func decode(text string, into any) error {
	if len(text) > MaxDocumentBytes {
		return fmt.Errorf("%d bytes: %w: at most %d", len(text), ErrRange, MaxDocumentBytes)
	}
	strict, err := kjson.UnmarshalStrict([]byte(text), into)
	if err != nil {
		return err
	}
	if len(strict) > 0 {
		return strict[0]
	}
	return nil
}

func encode(doc any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(doc)
	if err == nil && len(b) > MaxDocumentBytes {
		// Nobody could read it back.
		return "", fmt.Errorf("%d bytes: %w: at most %d", len(b), ErrRange, MaxDocumentBytes)
	}
	return string(b), err
}
