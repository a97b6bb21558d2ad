// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"maps"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// Sampler asks NVML what each process has of the GPUs on which containers have turns. So
// none is charged with the time of processes without turns. All fields are required.
type Sampler struct {
	Devices interface {
		Library() (device.Library, error)
	}
	// Turns gives them: limiter.Limiter.
	Turns interface {
		Working() []string
		Sampled(uuid string, busy map[int]int, containers map[int]string)
	}
	Containers *hooks.ContainerIndex
	// Proc is where procfs of the host's PID namespace is mounted.
	Proc string
	Log  logr.Logger

	// seen are the time stamps of the last samples, asked those of Working.
	seen, asked map[string]uint64
}

// Run samples again and again until ctx ends. NVML may hang: nobody waits for this.
func (s *Sampler) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { s.Sample() }, pace.SampleInterval)
	return nil
}

// Sample samples once.
func (s *Sampler) Sample() {
	working := s.Turns.Working()
	if len(working) == 0 {
		return
	}
	library, err := s.Devices.Library()
	if err != nil {
		return // which is said elsewhere
	}
	seen := map[string]uint64{}
	for _, uuid := range working {
		busy, last, err := library.Utilization(uuid, s.seen[uuid])
		seen[uuid] = last
		if err != nil {
			s.Log.V(1).Info("Cannot ask how busy each process keeps a device; containers are charged with the time of processes that no limit holds", "gpu", uuid, "err", err)
			continue
		}
		s.Turns.Sampled(uuid, busy, s.containers(busy))
	}
	s.seen = seen
}

// containers are what the processes are in, by their cgroups: what they write into
// their counters is no proof. A process that has ended was in one that nobody can find out,
// and is taken out of busy: a tenant could have others' time by processes that end soon.
func (s *Sampler) containers(busy map[int]int) map[int]string {
	all := map[int]string{}
	for pid := range busy {
		p, lives := look(s.Proc, pid)
		if !lives {
			delete(busy, pid)
			continue
		}
		if holder, found := holderOf(s.Containers, p); found {
			all[pid] = holder.ID
		}
	}
	return all
}

// errEnded is of a process that has worked and ended since.
var errEnded = errors.New("a process that has worked on the device has ended, and its container is not known")

// Working are the containers, by the runtime's id, whose processes have worked on a device. That is
// in NVML's last sample period, unless it was asked for that before. One goroutine may call it,
// another one than Run's.
func (s *Sampler) Working(uuid string) (map[string]bool, error) {
	library, err := s.Devices.Library()
	if err != nil {
		return nil, err
	}
	busy, last, err := library.Utilization(uuid, s.asked[uuid])
	if err != nil {
		return nil, err
	}
	if s.asked == nil {
		s.asked = map[string]uint64{}
	}
	s.asked[uuid] = last
	maps.DeleteFunc(busy, func(_, percent int) bool { return percent == 0 })
	n, all := len(busy), map[string]bool{}
	for _, container := range s.containers(busy) {
		all[container] = true
	}
	if len(busy) < n {
		return nil, errEnded
	}
	return all, nil
}
