// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"fmt"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Usage reads the counters of the container's run.
func (l *Limiter) Usage(c Container) (*layout.Usage, error) {
	dir, err := l.folder(c)
	if err != nil {
		return nil, err
	}
	usage, err := layout.ReadUsage(dir.counters())
	if err != nil {
		return nil, err
	}
	if len(usage.Devices) != len(c.Grants) {
		return nil, fmt.Errorf("counters: %d devices, the container has %d", len(usage.Devices), len(c.Grants))
	}
	return &usage, nil
}

// Usage counts nothing: there is no library in the container.
func (Exclusive) Usage(Container) (*layout.Usage, error) { return nil, nil }
