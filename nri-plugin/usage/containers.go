// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
)

const (
	// linger is how long a workload may have no container here before its entry ends: pods of a
	// CronJob come again.
	linger = time.Hour
	// shown is how long an ended entry is published. The allocator adds it up in that time.
	shown = 24 * time.Hour
	// maxPods bounds the pods of an entry that are known from others.
	maxPods = 32
)

// containerUse is an entry: what the containers of one name of a workload have used here.
type containerUse struct {
	v1alpha1.ContainerUse
	Of advice.Use `json:"of"`
	// Pods are the last ones that were counted.
	Pods []types.UID `json:"podUIDs,omitempty"`
	// Idle is since when none of its containers runs; zero while one does.
	Idle time.Time `json:"idle,omitzero"`
}

// key is what tells entries that have not ended from each other.
func (u *containerUse) key() v1alpha1.ContainerUse {
	return v1alpha1.ContainerUse{Namespace: u.Namespace, Workload: u.Workload, Container: u.Container, Model: u.Model}
}

// watched is a container that is observed.
type watched struct {
	// ID is the runtime's id, Key what its entry has.
	ID  string                `json:"id"`
	Pod types.UID             `json:"pod"`
	Key v1alpha1.ContainerUse `json:"key"`
	// At is when it was read last, Devices what was read of each of its slices.
	At      time.Time      `json:"at"`
	Devices []watchedSlice `json:"devices"`
}

// watchedSlice is what counters said last, and may not count again.
type watchedSlice struct {
	Busy      time.Duration `json:"busy,omitempty"`
	Throttled time.Duration `json:"throttled,omitempty"`
	Peak      uint64        `json:"peak,omitempty"`
	Need      uint64        `json:"need,omitempty"`
	Refusals  uint64        `json:"refusals,omitempty"`
}

// observe adds to the entry of a container's workload what it has used since it was read last. The
// workload is empty where it is not known; it counts for a container that is not watched yet.
func (a *Account) observe(c mode.Container, workload string, all []sample, now time.Time) {
	i := slices.IndexFunc(a.kept.Watched, func(w watched) bool { return w.ID == c.ID })
	if len(all) == 0 || i < 0 && workload == "" || all[0].grant.Idle > 0 { // what an idle slice gets is no need
		return
	}
	if i < 0 {
		key := v1alpha1.ContainerUse{Namespace: all[0].namespace, Workload: workload, Container: c.Name, Model: a.present[all[0].uuid].model}
		first := watched{ID: c.ID, Pod: c.Pod, Key: key, At: now}
		for _, s := range all {
			// Peak, need and refusals since its start count with the next sample.
			first.Devices = append(first.Devices, watchedSlice{Busy: s.busy, Throttled: s.now.Throttled})
		}
		a.kept.Watched = append(a.kept.Watched, first)
		return
	}
	w := &a.kept.Watched[i]
	elapsed := now.Sub(w.At)
	if elapsed <= 0 || len(w.Devices) != len(all) {
		w.At = now // a clock that was put back
		return
	}
	// After a gap the mean over it counts as one more minute.
	of := advice.Sample{At: now, Lasted: min(elapsed, longestSample)}
	for k, s := range all {
		d := &w.Devices[k]
		core := float64(s.busy)
		if !s.whole {
			core = 100 * float64(s.busy-d.Busy) / float64(elapsed)
		}
		of.Core = max(of.Core, core)
		waited := float64(max(s.now.Throttled-d.Throttled, 0)) / float64(elapsed)
		of.Throttled = max(of.Throttled, time.Duration(min(waited, 1)*float64(of.Lasted)))
		of.Mem = max(of.Mem, mib(s.now.UsedBytes))
		if s.now.PeakBytes > d.Peak {
			of.Peak = max(of.Peak, mib(s.now.PeakBytes))
		}
		if s.now.NeedBytes > d.Need {
			// What no GPU has is no need.
			of.Need = max(of.Need, min(mib(s.now.NeedBytes), s.grant.DeviceMem))
		}
		if s.now.MemoryRefusals > d.Refusals {
			of.Refusals += int64(min(s.now.MemoryRefusals-d.Refusals, 1<<40))
		}
		*d = watchedSlice{s.busy, s.now.Throttled, s.now.PeakBytes, s.now.NeedBytes, s.now.MemoryRefusals}
	}
	w.At = now
	u := a.entry(w.Key)
	u.Of.Observe(of)
	u.GPUMem = all[0].grant.DeviceMem
	u.Of.Request = advice.Amount{Core: min(all[0].grant.Core, v1alpha1.WholeGPU), Mem: all[0].grant.Mem}
	if !slices.Contains(u.Pods, w.Pod) {
		u.Of.Pods++
		u.Pods = append(u.Pods[max(0, len(u.Pods)+1-maxPods):], w.Pod)
	}
}

// mib is bytes in MiB, rounded up: so much memory is needed to have them.
func mib(bytes uint64) v1alpha1.MiB {
	return v1alpha1.MiBFromBytes(min(bytes, 1<<62) + 1<<20 - 1)
}

// entry is the one of that key which has not ended. It is made where it is missing.
func (a *Account) entry(key v1alpha1.ContainerUse) *containerUse {
	for _, u := range a.kept.Containers {
		if u.Ended == nil && u.key() == key {
			return u
		}
	}
	u := &containerUse{ContainerUse: key}
	a.kept.Containers = append(a.kept.Containers, u)
	return u
}

// settle forgets containers that have ended, and ends and drops the entries of which the time has come.
func (a *Account) settle(now time.Time) {
	if a.from.Table.Synced() {
		a.kept.Watched = slices.DeleteFunc(a.kept.Watched, func(w watched) bool {
			_, runs := a.from.Table.Get(w.ID)
			return !runs
		})
	}
	running := map[v1alpha1.ContainerUse]int32{}
	for _, w := range a.kept.Watched {
		running[w.Key] += int32(len(w.Devices))
	}
	for _, u := range a.kept.Containers {
		if u.Ended != nil {
			continue
		}
		u.Slices = running[u.key()]
		switch {
		case u.Slices > 0:
			u.Idle = time.Time{}
		case u.Idle.IsZero():
			u.Idle = now
		case now.Sub(u.Idle) >= linger:
			u.end(now)
		}
	}
	a.kept.Containers = slices.DeleteFunc(a.kept.Containers, func(u *containerUse) bool {
		return u.Ended != nil && now.Sub(u.Ended.Time) >= shown
	})
	// The ones that go first stand first.
	slices.SortStableFunc(a.kept.Containers, func(x, y *containerUse) int {
		if (x.Ended == nil) != (y.Ended == nil) {
			return cmp.Compare(btoi(x.Ended == nil), btoi(y.Ended == nil))
		}
		return x.Of.Last.Compare(y.Of.Last)
	})
	a.kept.Containers = slices.Delete(a.kept.Containers, 0, max(0, len(a.kept.Containers)-v1alpha1.MaxUsageContainers))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (u *containerUse) end(now time.Time) {
	ended := metav1.NewTime(now.UTC().Truncate(time.Second))
	u.Ended, u.Slices, u.Pods = &ended, 0, nil
}

// published are the entries as the object has them. Where they are too much, the first go.
func (a *Account) published() []v1alpha1.ContainerUse {
	var all []v1alpha1.ContainerUse
	room := v1alpha1.MaxUsageContainerBytes
	for _, u := range slices.Backward(a.kept.Containers) {
		text, err := json.Marshal(&u.Of)
		if room -= len(text); err != nil || room < 0 {
			break
		}
		e := u.ContainerUse
		e.Use = string(text)
		all = append(all, e)
	}
	slices.Reverse(all)
	return all
}

// takeOver has the entries of the object go on as ended ones: an account that began without a file
// adds to others. Those that cannot be read are lost.
func (a *Account) takeOver(before []v1alpha1.ContainerUse, now time.Time) {
	var all []*containerUse
	for _, e := range before[:min(len(before), v1alpha1.MaxUsageContainers)] {
		u := &containerUse{ContainerUse: e}
		if u.Use = ""; json.Unmarshal([]byte(e.Use), &u.Of) != nil {
			continue
		}
		if u.Ended == nil {
			u.end(now)
		}
		all = append(all, u)
	}
	a.kept.Containers = append(all, a.kept.Containers...)
}

// restart has all entries begin again. The allocator may have added up what an object had that is gone.
func (a *Account) restart(now time.Time) error {
	a.mu.Lock()
	if a.kept.Slot == 0 { // nothing was published yet
		a.mu.Unlock()
		return nil
	}
	a.kept.Containers = nil
	a.mu.Unlock()
	return a.save(now, true)
}
