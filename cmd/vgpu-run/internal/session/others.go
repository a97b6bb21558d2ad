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

// Others is what NVML has reported of processes that no limit holds, beside the session's command.
type Others struct {
	// Known: NVML has answered, if only that there were none.
	Known bool
	// Worked is for how long they have, by the UUID of the device.
	Worked map[string]time.Duration
}

// Others is what has been reported so far. A new leader goes on with it.
func (s *Session) Others() Others { return readOthers(s.dir) }

func readOthers(session string) Others {
	o := Others{Worked: map[string]time.Duration{}}
	b, err := os.ReadFile(filepath.Join(session, othersName))
	o.Known = err == nil && json.Unmarshal(b, &o.Worked) == nil
	return o
}

// sample tells the loop again and again what each process has had of the devices on which
// commands with a quota work, until ctx ends or NVML can't say.
func (l *leader) sample(ctx context.Context, busy func(uuid string) (map[int]int, error)) {
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
	for path := range members {
		others := readOthers(path)
		if s.Others == 0 && others.Known {
			continue
		}
		others.Worked[uuid] += pace.SampleInterval * time.Duration(min(s.Others, 100)) / 100
		if b, err := json.Marshal(others.Worked); err == nil {
			// One that ends just now misses the last second in its report. Renamed, since it
			// may be reading.
			next := filepath.Join(path, othersName+".new")
			if os.WriteFile(next, b, 0o600) == nil {
				_ = os.Rename(next, filepath.Join(path, othersName))
			}
		}
	}
}
