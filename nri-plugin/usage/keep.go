// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// kept is the file: all that the account needs after a restart, written as one, so that
// nothing is counted twice or lost, wherever the agent is killed.
type kept struct {
	Account v1alpha1.SliceUsageStatus `json:"account"`
	// Fresh: it began without a file, and what the object has is not added yet.
	Fresh bool `json:"fresh,omitempty"`
	// Devices at the account's Through.
	Devices []keptDevice `json:"devices,omitempty"`
	// Measured is when the counters were read last, Readings what they said.
	Measured time.Time `json:"measured,omitzero"`
	Readings []reading `json:"readings,omitempty"`
	// Containers are what workloads have used, Watched the containers that are observed.
	Containers []*containerUse `json:"containers,omitempty"`
	Watched    []watched       `json:"watched,omitempty"`
	// Slot is the last that was published, in Unix seconds.
	Slot int64 `json:"slot,omitempty"`
}

type keptDevice struct {
	UUID  string       `json:"uuid"`
	Model string       `json:"model"`
	Mem   v1alpha1.MiB `json:"mem"`
}

// load reads the file. Empty is what a power cut leaves of one that was just written.
func load(path string) (k kept, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return kept{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		return kept{}, err
	}
	return k, nil
}

func write(path string, text []byte) error {
	return atomicfile.Write(path, bytes.NewReader(text), 0o600)
}

// save writes the file where that is due.
func (a *Account) save(now time.Time, due bool) error {
	a.mu.Lock()
	if since := now.Sub(a.saved); a.kept.Account.Through.IsZero() || !due && !a.changed && !a.saved.IsZero() && since >= 0 && since < savePeriod {
		a.mu.Unlock()
		return nil
	}
	a.changed, a.saved = false, now
	text, err := json.Marshal(&a.kept)
	sums := a.kept.Account.DeepCopy().Sums
	a.mu.Unlock()
	if err == nil {
		err = a.write(a.from.Path, text)
	}
	if err != nil {
		return fmt.Errorf("writing the node's account: %w; check the space on the node's state directory", err)
	}
	a.mu.Lock()
	a.sums = sums
	a.mu.Unlock()
	return nil
}
