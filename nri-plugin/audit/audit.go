// SPDX-License-Identifier: Apache-2.0

// Package audit owns the look at the processes that really use the node's GPUs. It compares the
// driver's own list with the containers that hold slices and with what the limiter has let in.
// It reports every process that no limit holds. And it looks for processes that hold a
// descriptor of a GPU of which they have no slice. Sampler says to the turns how much of a GPU
// processes have had that have none.
//
// It tells by an event of the pod, a metric and the log. Processes that leave a limit, and
// those that hold a GPU without a slice, it ends where the operator wants that.
package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// ReasonProcess is the reason of the event: a process uses a device past the
// limits of its container, or its container has none.
const ReasonProcess = "UnenforcedProcess"

const (
	// period between looks.
	period = 10 * time.Second
	// quiet is how long a container is not warned again of what it was warned of and
	// has stopped doing: one that goes in and out must not fill the event list.
	quiet = 10 * time.Minute
)

// Auditor looks at the devices again and again. All fields but End and EndUnenforced are
// required.
type Auditor struct {
	Devices interface {
		Snapshot() (device.Snapshot, bool)
		Library() (device.Library, error)
	}
	Modes      mode.Set
	Table      *attach.ContainerTable
	Containers *hooks.ContainerIndex
	Report     hooks.Reporter
	// Proc is where procfs of the host's PID namespace is mounted.
	Proc string
	// DevRoot is the parent of the /dev that has the driver's nodes.
	DevRoot string
	// End ends processes that hold a device without a slice of it, EndUnenforced those that use
	// one and that no limit holds.
	End, EndUnenforced bool
	Now                func() time.Time
	Log                logr.Logger

	mu       sync.Mutex
	findings []Finding
	held     []Finding
	unread   []hooks.Holder
	// suspects are the processes of the look before. One that ends loses its mark
	// before it leaves the driver's list, so it takes two looks to tell.
	suspects map[suspect]bool
	warned   map[place]time.Time

	round  round
	bounds bounds // of a look at descriptors; usual if zero
}

// Finding is how many processes of one container use one device unenforced.
type Finding struct {
	// Holder is the zero value for processes that are in no container.
	Holder    hooks.Holder
	UUID      string
	Processes int
}

// place is a container on a device.
type place struct{ container, uuid string }

type suspect struct {
	place
	pid   int
	start uint64
}

// Findings of the latest look, those of one container and device together.
func (a *Auditor) Findings() []Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.findings)
}

// Run looks once a period until ctx ends.
func (a *Auditor) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) {
		a.LookAtDescriptors()
		a.Look()
	}, period)
	return nil
}

// user is a process that has a context on a device.
type user struct {
	process
	uuid   string
	holder hooks.Holder
	entry  attach.Entry
}

// Look looks once. A process is reported when two looks in a row have found it.
func (a *Auditor) Look() {
	users, err := a.users()
	if err != nil {
		a.Log.V(1).Info("Cannot list the devices' processes", "err", err)
		return
	}
	suspects := map[suspect]bool{}
	found := map[place][]user{}
	marked := map[string]map[int]bool{}
	for _, u := range users {
		if a.enforced(u, marked) {
			continue
		}
		at := place{container: u.holder.ID, uuid: u.uuid}
		s := suspect{place: at, pid: u.pid, start: u.start}
		suspects[s] = true
		if a.suspects[s] {
			found[at] = append(found[at], u)
		}
	}
	a.suspects = suspects
	a.publish(found)
}

// users are the processes on all devices. The containers' counters are read after
// this: a process marks itself there before it can have a context.
func (a *Auditor) users() ([]user, error) {
	library, err := a.Devices.Library()
	if err != nil {
		return nil, err
	}
	now, _ := a.Devices.Snapshot()
	var all []user
	for _, d := range now.Devices {
		if d.MIG == v1alpha1.MIGEnabled {
			continue // the driver keeps every process to its own instance
		}
		pids, failed := library.Processes(d.UUID)
		err = errors.Join(err, failed)
		for _, pid := range pids {
			p, lives := look(a.Proc, pid)
			if !lives {
				continue
			}
			u := user{process: p, uuid: d.UUID}
			if holder, found := holderOf(a.Containers, p); found {
				u.holder = holder
				u.entry, _ = a.Table.Get(holder.ID)
			}
			all = append(all, u)
		}
	}
	if len(all) == 0 {
		return nil, err
	}
	return all, nil
}

// holderOf is the container that a process is in; false when it is in none.
func holderOf(index *hooks.ContainerIndex, p process) (hooks.Holder, bool) {
	for _, id := range p.ids {
		if holder, found := index.Find(id); found {
			return holder, true
		}
	}
	return hooks.Holder{}, false
}

// enforced reports whether a limit holds the process on the device. marked keeps
// the processes that show in the containers' counters, read once in a look.
func (a *Auditor) enforced(u user, marked map[string]map[int]bool) bool {
	if !u.entry.Prepared || !slices.ContainsFunc(u.entry.Grants, func(g ledger.Grant) bool { return g.UUID == u.uuid }) {
		return false
	}
	if marked[u.entry.ID] == nil {
		pids := map[int]bool{}
		usage, err := a.Modes.Usage(u.entry.Container)
		if usage == nil && err == nil {
			return true // nothing has to hold it
		}
		if usage != nil {
			for _, p := range usage.Processes {
				pids[p.HostPID] = true
			}
		}
		marked[u.entry.ID] = pids
	}
	return marked[u.entry.ID][u.pid] || a.holdsCounters(u.pid)
}

func (a *Auditor) publish(found map[place][]user) {
	now := a.Now()
	if a.warned == nil {
		a.warned = map[place]time.Time{}
	}
	for at, last := range a.warned {
		if found[at] == nil && now.Sub(last) > quiet {
			delete(a.warned, at)
		}
	}
	var findings []Finding
	for at, users := range found {
		did := ""
		if a.EndUnenforced {
			did = a.endUnenforced(users)
		}
		first := users[0]
		findings = append(findings, Finding{Holder: first.holder, UUID: at.uuid, Processes: len(users)})
		if _, before := a.warned[at]; !before {
			a.tell(first, did)
		}
		a.warned[at] = now
	}
	a.mu.Lock()
	a.findings = findings
	a.mu.Unlock()
}

// endUnenforced ends processes of one container on one device, and returns what the event says
// of that. It leaves those that may have been given the device past Vernier.
func (a *Auditor) endUnenforced(users []user) (did string) {
	var failed error
	for _, u := range users {
		limited := u.entry.Prepared && len(u.entry.Grants) > 0
		if without := !u.holder.Sliced && u.holder.Kept && !u.holder.Opens; !limited && !without {
			continue
		}
		same := func(now process) bool {
			holder, found := holderOf(a.Containers, now)
			return found && holder.ID == u.holder.ID
		}
		switch ended, err := a.kill(u.process, same); {
		case err != nil:
			a.Log.Error(err, "Cannot end a process that no limit holds", "containerID", u.holder.ID, "process", u.String(), "gpu", u.uuid)
			failed = err
		case ended:
			a.Log.Info("Ended a process that no limit holds", "containerID", u.holder.ID, "process", u.String(), "gpu", u.uuid)
			did = ". It is ended"
		}
	}
	if failed != nil {
		return fmt.Sprintf(". Not all such processes can be ended (%v): delete the pod", failed)
	}
	return did
}

// tell tells of a process, and what was done about it.
func (a *Auditor) tell(u user, did string) {
	if u.holder.ID == "" {
		a.Log.Info("A process outside all containers uses a device; its use is not counted against any slice", "process", u.String(), "gpu", u.uuid)
		return
	}
	message := fmt.Sprintf("process %s of container %s uses device %s and no limit holds it: ", u.process, u.holder.Name, u.uuid)
	if len(u.entry.Grants) == 0 {
		message += fmt.Sprintf("the container has no slice; delete the pod and ask for %s", v1alpha1.ResourceCore)
	} else {
		message += "it passes by the limiter. Programs do that are linked statically, built on musl, started by a loader of their own, or linked with the driver in LD_PRELOAD. Build it for glibc, link it dynamically and leave LD_PRELOAD to others, or give the pod whole devices"
	}
	a.Log.Info("Unenforced process", "pod", u.holder.Pod.Namespace+"/"+u.holder.Pod.Name, "container", u.holder.Name, "process", u.String(), "gpu", u.uuid)
	a.Report.Warn(u.holder.Pod.Of(u.holder.Name), ReasonProcess, message+did)
}
