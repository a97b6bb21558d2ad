// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"sync"

	"vernier.dev/vernier/allocator/placement"
)

// UnschedulableClasses remembers for which equivalence classes of pods no node had the
// devices, until a device has more room. A burst of pods that don't fit is mostly of a few
// classes. Thousands of them then cost no more than one of each, and a pod that fits doesn't
// wait for them.
type UnschedulableClasses struct {
	mu    sync.Mutex
	found map[string]*placement.Shortfall
	// times counts how often there was more room.
	times int
}

// Find is what pods of the class lack, nil when that isn't known.
func (s *UnschedulableClasses) Find(class string) *placement.Shortfall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found[class]
}

// Time is to be asked before the devices are looked at whose lack is noted.
func (s *UnschedulableClasses) Time() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}

// Note remembers a lack, unless there was more room since the time.
func (s *UnschedulableClasses) Note(class string, short *placement.Shortfall, time int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time != s.times {
		return
	}
	if s.found == nil {
		s.found = map[string]*placement.Shortfall{}
	}
	s.found[class] = short
}

// forget is to be called after a device has got more room.
func (s *UnschedulableClasses) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times++
	clear(s.found)
}
