// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// made is what we have made on this node, in a file that is always ahead of the
// driver: an instance is entered before it is made and struck out after it is
// destroyed. Whatever step a crash comes at, what of ours is on a device is in
// here. What is in here and is not ours is told apart:
//
//   - a whole instance by its UUID, which no other ever has, also while it is
//     being destroyed;
//   - one that is being made by its place, which was empty when it was entered: only
//     if somebody made the same there between our entry and a crash of ours would we
//     mistake it. The driver loses all instances with a reboot, so what an earlier
//     boot left unfinished says nothing about what is there now.
type made struct {
	path    string
	boot    string
	entries []entry
}

type entry struct {
	Device string            `json:"device"`
	Place  v1alpha1.MIGPlace `json:"place"`
	// UUID of the instance; empty while it is being made.
	UUID string `json:"uuid,omitempty"`
	// Going: it is being destroyed.
	Going bool   `json:"going,omitempty"`
	Boot  string `json:"boot"`
}

// bootID changes with every boot of the machine.
const bootID = "/proc/sys/kernel/random/boot_id"

func load(path string) (*made, error) {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return nil, err
	}
	m := &made{path: path, boot: strings.TrimSpace(string(boot))}
	text, err := os.ReadFile(path)
	// Empty is what a power cut leaves of a file that was just written; with it went all
	// instances.
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &m.entries)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which MIG instances are ours: %w; remove %s, and they count as somebody else's", err, path)
	}
	return m, nil
}

func (m *made) index(device string, place v1alpha1.MIGPlace) int {
	return slices.IndexFunc(m.entries, func(e entry) bool { return e.Device == device && e.Place == place })
}

// owns reports whether an instance that is on the device is ours, and whether it is
// unfinished.
func (m *made) owns(device string, i v1alpha1.MIGInstance) (ours, unfinished bool) {
	n := m.index(device, i.MIGPlace)
	if n < 0 {
		return false, false
	}
	e := m.entries[n]
	unfinished = e.UUID == "" || e.Going
	same := e.UUID != "" && e.UUID == i.UUID
	// Of one that is being destroyed only the shell may be left.
	began := unfinished && e.Boot == m.boot && (e.UUID == "" || i.UUID == "")
	return same || began, unfinished
}

// enter writes down that an instance of ours is about to be made at a place, with
// an empty UUID, or is there.
func (m *made) enter(device string, place v1alpha1.MIGPlace, uuid string) error {
	entries := slices.DeleteFunc(slices.Clone(m.entries), func(e entry) bool { return e.Device == device && e.Place == place })
	return m.save(append(entries, entry{Device: device, Place: place, UUID: uuid, Boot: m.boot}))
}

// going writes down that the instance of ours at a place is about to be destroyed.
func (m *made) going(device string, place v1alpha1.MIGPlace) error {
	entries := slices.Clone(m.entries)
	entries[m.index(device, place)].Going = true
	return m.save(entries)
}

// strike writes down that nothing of ours is at a place.
func (m *made) remove(device string, place v1alpha1.MIGPlace) error {
	if m.index(device, place) < 0 {
		return nil
	}
	return m.save(slices.DeleteFunc(slices.Clone(m.entries), func(e entry) bool { return e.Device == device && e.Place == place }))
}

func (m *made) save(entries []entry) error {
	text, err := json.Marshal(entries)
	if err == nil {
		err = atomicfile.Write(m.path, bytes.NewReader(text), 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing down which MIG instances are ours: %w; check the space on the node's state directory", err)
	}
	m.entries = entries
	return nil
}
