// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"sync"

	"vernier.dev/vernier/allocator/placement"
)

// scarcity remembers for which kinds of pods no node had the devices, until a device
// has more room. A burst of pods that don't fit is mostly of a few kinds: thousands of
// them then cost no more than one of each, and whoever fits doesn't wait for them.
type scarcity struct {
	mu    sync.Mutex
	found map[string]*placement.Shortfall
	// times counts how often there was more room.
	times int
}

// find is what pods of the kind lack, nil when that isn't known.
func (s *scarcity) find(kind string) *placement.Shortfall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found[kind]
}

// now is to be asked before the devices are looked at whose lack is noted.
func (s *scarcity) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}

// note remembers a lack, unless there was more room since the time.
func (s *scarcity) note(kind string, short *placement.Shortfall, time int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time != s.times {
		return
	}
	if s.found == nil {
		s.found = map[string]*placement.Shortfall{}
	}
	s.found[kind] = short
}

// forget is to be called after a device has got more room.
func (s *scarcity) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times++
	clear(s.found)
}
