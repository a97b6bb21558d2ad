// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// Others is for how long, by the UUID of the device, processes have worked beside the
// session's command that no limit holds, as far as NVML tells. A new leader goes on with it.
func (s *Session) Others() map[string]time.Duration { return readOthers(s.dir) }

func readOthers(session string) map[string]time.Duration {
	others := map[string]time.Duration{}
	if b, err := os.ReadFile(filepath.Join(session, othersName)); err == nil && json.Unmarshal(b, &others) == nil {
		return others
	}
	return map[string]time.Duration{}
}

// sample tells the loop again and again what each process has had of the devices on which
// commands with a quota work, until ctx ends or NVML can't say.
func (l *leader) sample(ctx context.Context, dir string, busy func(uuid string) (map[int]int, error)) {
	ticks := time.NewTicker(pace.SampleInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		for _, uuid := range l.loop.Working() {
			processes, err := busy(uuid)
			if err != nil {
				return
			}
			l.sampled(uuid, processes)
		}
	}
}

// sampled takes what each process has had of a device in the last SampleInterval, in percent.
func (l *leader) sampled(uuid string, processes map[int]int) {
	l.mu.Lock()
	members := maps.Clone(l.members)
	l.mu.Unlock()
	owners := map[int]*pace.Container{}
	for path, member := range members {
		usage, err := layout.ReadUsage(filepath.Join(path, countersName))
		if err != nil {
			continue // on its way out
		}
		for _, p := range usage.Processes {
			owners[p.HostPID] = member
		}
	}
	for pid := range processes {
		if unix.Kill(pid, 0) == unix.ESRCH {
			delete(processes, pid) // of a command, maybe: it is not counted as others
		}
	}
	s := pace.NewSample(processes, owners)
	l.loop.Sampled(uuid, s)
	if s.Others == 0 {
		return
	}
	for path := range members {
		others := readOthers(path)
		others[uuid] += pace.SampleInterval * time.Duration(min(s.Others, 100)) / 100
		if b, err := json.Marshal(others); err == nil {
			// One that ends just now misses the last second in its report.
			_ = os.WriteFile(filepath.Join(path, othersName), b, 0o600)
		}
	}
}
