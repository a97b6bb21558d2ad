// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"vernier.dev/vernier/vgpu-limiter/pace"
)

// interval is how often a process looks whether it is to lead, and the one that
// leads whether sessions have come or gone.
const interval = 50 * time.Millisecond

// ShareTime makes the sessions in dir share the time of their devices, until ctx
// is done. One process does it for all, the one that holds the lock, and another
// takes over when it ends. While it is stopped nobody does, and each command has
// its plain quota. busy says how busy each process keeps a device (package samples).
func ShareTime(ctx context.Context, dir string, busy func(uuid string) (map[int]int, error)) {
	looks := time.NewTicker(interval)
	defer looks.Stop()
	var held *os.File
	l := &leader{loop: pace.New(), members: map[string]*pace.Container{}}
	for {
		if held == nil {
			if held = lead(dir); held != nil {
				defer func() { _ = held.Close() }()
				go l.loop.Run(ctx)
				go l.sample(ctx, busy)
			}
		}
		if held != nil {
			l.follow(dir)
		}
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
	}
}

// lead takes the lead, if nobody has it.
func lead(dir string) *os.File {
	path := filepath.Join(dir, "lead")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil
	}
	_ = f.Close()
	if f, err = lock(path); err != nil {
		return nil
	}
	return f
}

type leader struct {
	loop *pace.Loop

	mu      sync.Mutex
	members map[string]*pace.Container // by the session's path
}

// follow makes the loop's members the sessions that there are.
func (l *leader) follow(dir string) {
	paths, err := sessions(dir)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for path, member := range l.members {
		if !slices.Contains(paths, path) {
			member.Detach()
			delete(l.members, path)
		}
	}
	for _, path := range paths {
		if l.members[path] != nil {
			continue
		}
		// One that can't be read is on its way out.
		member, err := l.loop.Attach(filepath.Join(path, limitsName), filepath.Join(path, countersName), filepath.Join(path, paceName))
		if err == nil {
			l.members[path] = member
		}
	}
}
