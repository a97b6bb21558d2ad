// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"fmt"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Resize puts other amounts of one device in force in a running container, by its library
// alone. The driver's own limit is for the caller to raise before, or to lower after. A core
// of 0 is that of the container's start.
//
// It wraps *layout.InfeasibleError and layout.ErrOlderLibrary; with any error nothing has
// changed. A container without files returns fs.ErrNotExist. After a crash the caller
// repeats the call. Calls are made one after the other.
func (l *Limiter) Resize(c mode.Container, uuid string, core v1alpha1.Percent, mem v1alpha1.MiB) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir, err := l.find(c)
	if err == nil {
		err = layout.Resize(dir.limits(), dir.counters(), dir.pace(), layout.DeviceLimit{UUID: uuid, Core: uint32(core), MemoryBytes: mem.Bytes()})
	}
	if err != nil {
		return fmt.Errorf("resizing container %s of pod %s: %w", c.Name, c.Owner, err)
	}
	return nil
}
