// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// Usage reads the counters of the container's run. Figures that cannot be are an error.
func (l *Limiter) Usage(c mode.Container) (*layout.Usage, error) {
	dir, err := l.folder(c)
	if err != nil {
		return nil, err
	}
	usage, err := layout.ReadUsage(dir.counters())
	if err != nil {
		return nil, err
	}
	limits := make([]uint64, len(c.Grants))
	for i, g := range c.Grants {
		limits[i] = g.Mem.Bytes()
	}
	if err := usage.Check(limits, pace.Now()); err != nil {
		return nil, err
	}
	return &usage, nil
}
