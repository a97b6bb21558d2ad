// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Remembered are the pods of which something is kept. It is when they were
// asked for last, that they were nominated, or that they have their slices and
// have not started.
func (p *Preemption) Remembered() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Keys(p.lastAttempt)), slices.Collect(maps.Keys(p.nominated)), slices.Collect(maps.Keys(p.given)))
}
