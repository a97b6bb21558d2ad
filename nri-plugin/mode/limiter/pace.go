// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// paced are the running containers by the runtime's id, as the loop that shares
// out the devices' time knows them. While nobody runs the loop, or the agent is
// away, every container has its plain quota.
type paced struct {
	loop    *pace.Loop
	members map[string]member
	// shut are the pods whose idle slices get no turns.
	shut map[types.UID]bool
}

type member struct {
	*pace.Container
	pod types.UID
}

func newPaced() paced { return paced{loop: pace.New(), members: map[string]member{}} }

// ShareTime gives containers that work beside each other their turns, and idle
// time to those that may have it, until ctx ends.
func (l *Limiter) ShareTime(ctx context.Context) error {
	l.paced.loop.Run(ctx)
	return nil
}

// Shut gives the idle slices of these pods no turns from now on, and those of all others theirs.
func (l *Limiter) Shut(pods map[types.UID]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paced.shut = pods
	for _, m := range l.paced.members {
		m.Shut(pods[m.pod])
	}
}

// Working are the UUIDs of the GPUs on which containers with a quota work.
func (l *Limiter) Working() []string { return l.paced.loop.Working() }

// Sampled takes what NVML says each process has had of a GPU, in percent, and the runtime's
// ids of their containers. The use of others is not charged to those here.
func (l *Limiter) Sampled(uuid string, busy map[int]int, containers map[int]string) {
	l.mu.Lock()
	owners := map[int]*pace.Container{}
	for pid, id := range containers {
		owners[pid] = l.paced.members[id].Container
	}
	l.mu.Unlock()
	l.paced.loop.Sampled(uuid, pace.NewSample(busy, owners))
}

// pace has the loop look after a running container. Where that fails its quota
// holds all the same, and its status says what it misses.
func (l *Limiter) pace(c mode.Container, all []v1alpha1.SliceStatus) []v1alpha1.SliceStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.paced.members[c.ID]; known {
		return all
	}
	dir, err := l.find(c)
	if err == nil {
		var joined *pace.Container
		if joined, err = l.paced.loop.Attach(dir.limits(), dir.counters(), dir.pace()); err == nil {
			l.paced.members[c.ID] = member{joined, c.Pod}
			joined.Shut(l.paced.shut[c.Pod])
			return all
		}
	}
	for i := range all {
		mode.Note(&all[i], "no turns beside busy neighbours: "+err.Error())
	}
	return all
}

// end takes a container that has ended out of the loop.
func (p *paced) end(id string) {
	if m, known := p.members[id]; known {
		m.Detach()
		delete(p.members, id)
	}
}

// endPod does so with a pod's containers whose end was not reported.
func (p *paced) endPod(pod types.UID) {
	for id, m := range p.members {
		if m.pod == pod {
			p.end(id)
		}
	}
}
