// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Resize is the document of AnnotationResize and AnnotationStart: amounts of each GPU, by
// container name. An absent amount stays as it is.
// +kubebuilder:object:generate=false
type Resize map[string]ResizeTo

// ResizeTo is what a container is to have of each of its GPUs. One of the two is set.
// +kubebuilder:object:generate=false
type ResizeTo struct {
	// Core is percent of a GPU's compute, 1 to 100, or 0 for no change.
	Core Percent `json:"core,omitempty"`
	// MemMiB is memory in MiB, 1 or more, or 0 for no change.
	MemMiB MiB `json:"memMiB,omitempty"`
}

// ParseResize decodes and checks a document; nil for an empty text. Unknown and duplicate fields,
// trailing text, amounts out of range and more than MaxAnnotationBytes are errors.
func ParseResize(text string) (r Resize, err error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > MaxAnnotationBytes {
		return nil, fmt.Errorf("%d bytes: %w: at most %d", len(text), ErrRange, MaxAnnotationBytes)
	}
	if err = decode(text, &r); err == nil {
		err = validateAll(r)
	}
	if err != nil {
		return nil, fmt.Errorf(`%w: write amounts of each GPU as in {"main":{"core":40,"memMiB":8000}}`, err)
	}
	return r, nil
}

func (to ResizeTo) validate() error {
	switch {
	case to == ResizeTo{}:
		return fmt.Errorf("neither core nor memMiB: %w", ErrRange)
	case to.Core < 0 || to.Core > WholeGPU:
		return fmt.Errorf("core %d: %w: from 1 to 100", to.Core, ErrRange)
	case to.MemMiB < 0 || to.MemMiB > maxMiB:
		return fmt.Errorf("memMiB %d: %w", to.MemMiB, ErrRange)
	}
	return nil
}

// Fits says why a container with the share cannot have so much of each GPU: a slice is at most
// what its container asks for. Memory in percent is known on a device only.
func (to ResizeTo) Fits(share Share) error {
	switch {
	case to.Core > share.Core && share.Core == 0:
		return fmt.Errorf("core %d: %w: the container asks for no compute", to.Core, ErrRange)
	case to.Core > share.Core:
		return fmt.Errorf("core %d: %w: the container asks for %d of each GPU, and can't have more", to.Core, ErrRange, share.Core)
	case to.MemMiB > share.MemMiB && share.MemMiB > 0:
		return fmt.Errorf("memMiB %d: %w: the container asks for %d of each GPU, and can't have more", to.MemMiB, ErrRange, share.MemMiB)
	}
	return nil
}

// Known says which container has no share or less than it is to have.
func (r Resize) Known(shares map[string]Share) error {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		share, asks := shares[name]
		if !asks {
			return fmt.Errorf("container %s asks for no share: name one that does", name)
		}
		if err := r[name].Fits(share); err != nil {
			return fmt.Errorf("container %s: %w", name, err)
		}
	}
	return nil
}

// From is the share with these amounts in the place of its own.
func (to ResizeTo) From(share Share) Share {
	if to.Core > 0 {
		share.Core = to.Core
	}
	if to.MemMiB > 0 {
		share.MemMiB, share.MemPercent = to.MemMiB, 0
	}
	return share
}

// Of is the amounts of a device that asks for, where a slice has is.
func (to ResizeTo) Of(is Amounts) Amounts {
	if to.Core > 0 {
		is.Core = to.Core
	}
	if to.MemMiB > 0 {
		is.Mem = to.MemMiB
	}
	return is
}

// String has one spelling for each document.
func (r Resize) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		var amounts []string
		if to := r[name]; to.Core > 0 {
			amounts = append(amounts, fmt.Sprintf("%d %%", to.Core))
		}
		if to := r[name]; to.MemMiB > 0 {
			amounts = append(amounts, fmt.Sprintf("%d MiB", to.MemMiB))
		}
		parts = append(parts, name+" to "+strings.Join(amounts, ", "))
	}
	return strings.Join(parts, "; ")
}
