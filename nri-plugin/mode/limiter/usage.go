// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"fmt"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Usage reads the counters of the container's run.
func (l *Limiter) Usage(c mode.Container) (*layout.Usage, error) {
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
