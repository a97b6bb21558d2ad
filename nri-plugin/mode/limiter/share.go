// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"bytes"
	"encoding/json"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// shareFile is the present share as programs may read it. It is replaced as a whole, so that
// inotify reports a rename. Nothing reads it to enforce anything.
const shareFile = "share.json"

// share is its content, by GPU in CUDA's order.
type share struct {
	// Since is from when on the amounts are in force.
	Since   time.Time     `json:"since"`
	Devices []shareDevice `json:"devices"`
	// Deadline is until when a program may free memory for the next amounts, which are smaller.
	Deadline time.Time     `json:"deadline,omitzero"`
	Next     []shareDevice `json:"next,omitempty"`
}

type shareDevice struct {
	UUID string `json:"uuid"`
	// Core is percent of the GPU's compute; 0 is no quota.
	Core v1alpha1.Percent `json:"core"`
	// BurstCore is how much of it is used at most, where the rest is nobody else's; absent without bursting.
	BurstCore v1alpha1.Percent `json:"burstCore,omitempty"`
	MemMiB    v1alpha1.MiB     `json:"memMiB"`
}

func shareOf(l layout.Limits) (all []shareDevice) {
	for _, d := range l.Devices {
		burst := v1alpha1.Percent(d.BurstCore)
		if d.MayBurst && burst == 0 {
			burst = v1alpha1.WholeGPU
		}
		all = append(all, shareDevice{d.UUID, v1alpha1.Percent(d.Core), burst, v1alpha1.MiB(d.MemoryBytes >> 20)})
	}
	return all
}

func (d folder) writeShare(s share) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(string(d)+"/"+shareFile, bytes.NewReader(append(text, '\n')), 0o644)
}

// Notice writes what is in force for the container's programs to read. With a deadline it names
// the amounts that they will have then.
func (l *Limiter) Notice(c mode.Container, now time.Time, next []ledger.Grant, deadline time.Time) error {
	dir, err := l.folder(c)
	if err != nil {
		return err
	}
	inForce, err := layout.InForce(dir.limits(), dir.pace())
	if err != nil {
		return err
	}
	s := share{Since: now.UTC(), Devices: shareOf(inForce), Deadline: deadline}
	if !deadline.IsZero() {
		for _, g := range next {
			s.Next = append(s.Next, shareDevice{UUID: g.UUID, Core: g.Core, MemMiB: g.Mem})
		}
	}
	return dir.writeShare(s)
}
