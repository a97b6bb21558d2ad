// SPDX-License-Identifier: Apache-2.0

// Package batch owns the host's side of opportunistic containers (annotation
// vernier.dev/qos): little weight, memory that is reclaimed first, and a cap on
// processor time. The cap holds for all of a node's together, and follows what all
// others use.
//
// It only ever takes away: no container gets more than the pod's own limit, and
// none that is not opportunistic is touched. It never writes to a cgroup; the
// runtime does, asked through NRI. CPU sets are the kubelet's alone.
package batch

import (
	"cmp"
	"strconv"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
)

// Container is an opportunistic container that runs.
type Container struct {
	// ID is the runtime's; Name is in the pod.
	ID, Name       string
	Namespace, Pod string
	UID            types.UID
	// PID of its first process.
	PID uint32
	// Quota as the runtime had it when the container was entered.
	Quota Quota
	// Seen: it was started under our eyes, so its processor time began at 0.
	Seen bool
}

// Quota is CFS bandwidth as the runtime sets it, in µs; 0 is none.
type Quota struct {
	US     int64
	Period uint64
}

const (
	// usualPeriod is the kubelet's and the kernel's default, in µs.
	usualPeriod = 100_000
	// weight is the smallest that there is: 2 of 1024 shares, 1 in v2. It counts
	// among the containers of the pod; between pods the kubelet's own weight, which
	// follows the pod's requests, does.
	weight = 2
	// firstToGo is the score of processes that the kernel ends first when the node
	// is out of memory.
	firstToGo = 1000
	// page is the kernel's unit of memory.
	page = 4096
)

// QuotaOf reads what the runtime has.
func QuotaOf(r *api.LinuxResources) Quota {
	return Quota{US: max(r.GetCpu().GetQuota().GetValue(), 0), Period: cmp.Or(r.GetCpu().GetPeriod().GetValue(), usualPeriod)}
}

// CPU is the quota as a limit; 0 is none.
func (q Quota) CPU() MilliCPU { return MilliCPU(q.US * 1000 / int64(q.Period)) }

// of makes a quota of the same period.
func (q Quota) of(m MilliCPU) Quota {
	// The kernel takes no less than 1 ms.
	return Quota{US: max(int64(m)*int64(q.Period)/1000, 1000), Period: q.Period}
}

// Adjust adds to the creation of an opportunistic container what it is held to from
// its first instruction on.
//
// The kernel's cpu.idle would weigh even less than the smallest weight, and is left
// alone. A group that has it refuses every weight, and runc writes one with each
// update, the kubelet's own included.
func (k *Keeper) Adjust(c *api.Container, adjust *api.ContainerAdjustment) {
	own := c.GetLinux().GetResources()
	adjust.SetLinuxCPUShares(weight)
	if q, capped := k.first(QuotaOf(own)); capped {
		adjust.SetLinuxCPUQuota(q.US)
		adjust.SetLinuxCPUPeriod(int64(q.Period))
	}
	score := firstToGo
	adjust.SetLinuxOomScoreAdj(&score)
	// Under v1 the score is all: the soft limit, which would be its like, NRI names
	// and containerd does not set.
	if high := k.highOf(own); high != "" {
		adjust.AddLinuxUnified(memoryHigh, high)
	}
}

const memoryHigh = "memory.high"

// highOf is the memory at which the kernel begins to slow the container down and to
// take back from it: nine tenths of its limit, as the kubelet does it where that has
// been switched on. Empty without a limit, where it is lower already, and under v1.
func (k *Keeper) highOf(r *api.LinuxResources) string {
	limit := r.GetMemory().GetLimit().GetValue()
	if limit <= 0 || !k.Times.V2() {
		return ""
	}
	high := limit / 10 * 9 / page * page
	if there, err := strconv.ParseInt(r.GetUnified()[memoryHigh], 10, 64); err == nil && there <= high {
		return ""
	}
	return strconv.FormatInt(high, 10)
}

// Resized keeps to it what another writer, as the kubelet, sets on a running
// container. The r has what is to change. It is nil where nothing of it is ours.
func (k *Keeper) Resized(c Container, r *api.LinuxResources) *api.ContainerUpdate {
	u := &api.ContainerUpdate{ContainerId: c.ID}
	if r.GetCpu().GetShares().GetValue() != 0 {
		u.SetLinuxCPUShares(weight)
	}
	if r.GetCpu().GetQuota().GetValue() != 0 {
		if q := k.resized(c, QuotaOf(r)); q.US > 0 {
			u.SetLinuxCPUQuota(q.US)
			u.SetLinuxCPUPeriod(int64(q.Period))
		}
	}
	if high := k.highOf(r); high != "" {
		u.AddLinuxUnified(memoryHigh, high)
	}
	if u.Linux == nil {
		return nil
	}
	return u
}
