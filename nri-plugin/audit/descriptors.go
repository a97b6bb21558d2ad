// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// ReasonHolder is the reason of the event: a process holds a descriptor of a GPU of which
// its container has no slice. The device cgroup is asked when a device is opened, not when
// a descriptor is passed.
const ReasonHolder = "DeviceWithoutSlice"

// bounds of one look: tenants choose how many processes and descriptors they have. A
// thread counts as a descriptor. What is left, the next look goes on with. A process takes
// some 20 µs and a descriptor 7, so a look is over within two seconds.
type bounds struct {
	// processes of the node that are assigned to their containers.
	processes int
	// descriptors that are looked at, but for the rest of the last process', and each
	// container's part of them in one round over all processes.
	descriptors, each int
}

var usual = bounds{processes: 32768, descriptors: 131072, each: 32768}

// round is one over all processes of the node, in as many looks as it takes.
type round struct {
	number int
	// listing of the processes, open where the last look has stopped, and what was read
	// of it and not looked at.
	listing *os.File
	pids    []string
	// spent descriptors of this look.
	spent int
	// readings by container.
	readings map[string]*reading
	warned   map[place]time.Time
	ended    map[place]int
}

// position among a container's descriptors: which process, its how manieth thread, and
// which descriptor is next.
type position struct{ pid, thread, fd int }

// reading is how far the descriptors of a container have been looked at.
type reading struct {
	holder hooks.Holder
	// round in which it had a process.
	round int
	left  int
	// from is where this round begins, and next where the next one does: the zero value
	// where all has been looked at.
	from, next position
	// Processes by device, that were found since the last beginning, and before it.
	found, before map[string]int
}

// LookAtDescriptors looks once for processes that hold a GPU without a slice of it.
//
// It opens nothing of a container's and asks no file system, for one can be the tenant's
// and never answer. Links' texts are not looked at, for paths are the tenant's too. It
// sees descriptors that a process has at that time, not those under way in a socket, nor
// the mapping of one.
func (a *Auditor) LookAtDescriptors() {
	r := &a.round
	if r.readings == nil {
		r.readings, r.warned = map[string]*reading{}, map[place]time.Time{}
	}
	limits := cmp.Or(a.bounds, usual)
	numbers := a.numbers()
	r.spent, r.ended = 0, map[place]int{}
	for n := 0; n < limits.processes && r.spent < limits.descriptors; n++ {
		pid, more := a.nextProcess()
		if !more {
			a.endRound()
			break
		}
		a.examine(pid, limits.each, numbers)
	}
	for at, n := range r.ended {
		a.Log.Info("Ended processes that held a device without a slice of it", "containerID", at.container, "gpu", at.uuid, "processes", n)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held, a.unread = nil, nil
	for _, one := range r.readings {
		for uuid, n := range one.before {
			a.held = append(a.held, Finding{Holder: one.holder, UUID: uuid, Processes: max(n, one.found[uuid])})
		}
		for uuid, n := range one.found {
			if one.before[uuid] == 0 {
				a.held = append(a.held, Finding{Holder: one.holder, UUID: uuid, Processes: n})
			}
		}
		if one.from != (position{}) {
			a.unread = append(a.unread, one.holder)
		}
	}
}

// Held are the processes that hold a device without a slice of it, those of one container
// and device together. With them are the containers of which one look does not see all descriptors.
func (a *Auditor) Held() (held []Finding, unread []hooks.Holder) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.held), slices.Clone(a.unread)
}

// numbers are the UUIDs of the node's GPUs by their devices' numbers.
func (a *Auditor) numbers() map[uint64]string {
	now, _ := a.Devices.Snapshot()
	numbers := map[uint64]string{}
	for _, d := range now.Devices {
		number := unix.Mkdev(hooks.NVIDIAMajor, uint32(d.Minor))
		var node unix.Stat_t
		err := unix.Stat(filepath.Join(a.DevRoot, "dev", fmt.Sprintf("nvidia%d", d.Minor)), &node)
		if err == nil && node.Mode&unix.S_IFMT == unix.S_IFCHR {
			number = node.Rdev
		}
		numbers[number] = d.UUID
	}
	return numbers
}

// nextProcess of the round; false when it is over.
func (a *Auditor) nextProcess() (int, bool) {
	r := &a.round
	for {
		for len(r.pids) > 0 {
			pid, err := strconv.Atoi(r.pids[0])
			r.pids = r.pids[1:]
			if err == nil {
				return pid, true
			}
		}
		if r.listing == nil {
			var err error
			if r.listing, err = os.Open(a.Proc); err != nil {
				a.Log.Error(err, "Cannot list the node's processes")
				return 0, false
			}
		}
		if r.pids, _ = r.listing.Readdirnames(512); len(r.pids) == 0 {
			_ = r.listing.Close()
			r.listing = nil
			return 0, false
		}
	}
}

// endRound has the next one begin.
func (a *Auditor) endRound() {
	r, now := &a.round, a.Now()
	for id, one := range r.readings {
		if one.round != r.number {
			delete(r.readings, id)
			continue
		}
		if one.next == (position{}) {
			one.before, one.found = one.found, nil
		}
		one.from, one.next, one.left = one.next, position{}, 0
	}
	for at, last := range r.warned {
		if now.Sub(last) > quiet {
			delete(r.warned, at)
		}
	}
	r.number++
}

// examine looks at a process, if it is of a container that may hold no GPU but by a slice.
// Within a container processes come in the order of their numbers, and where its part is
// used up the next round goes on: many in one process hide none in another.
func (a *Auditor) examine(pid, each int, numbers map[uint64]string) {
	r := &a.round
	holder, found := holderOf(a.Containers, process{ids: cgroup(a.Proc, pid)})
	if !found || holder.Opens {
		return
	}
	one := r.readings[holder.ID]
	if one == nil {
		one = &reading{holder: holder, round: -1}
		r.readings[holder.ID] = one
	}
	if one.round != r.number {
		one.round, one.left = r.number, each
	}
	if one.next != (position{}) || pid < one.from.pid {
		return
	}
	before := one.left
	w := walk{Auditor: a, reading: one, at: position{pid: pid}, numbers: numbers, seen: map[string]bool{}}
	if pid == one.from.pid {
		w.at = one.from
	}
	if !w.threads() {
		one.next = w.at
	}
	r.spent += before - one.left
}

// walk is a look at one process.
type walk struct {
	*Auditor
	*reading
	at      position
	numbers map[uint64]string
	// seen devices.
	seen map[string]bool
}

// take takes one from the container's part; false when there is none left.
func (w *walk) take() bool {
	if w.left <= 0 {
		return false
	}
	w.left--
	return true
}

// dots is how many entries a folder of procfs has before the first thread or descriptor:
// from there on its offsets are their numbers.
const dots = 2

// each calls for the names in a folder of procfs from a number on, until one is false.
func each(folder string, from int, call func(dir *os.File, name string) bool) bool {
	dir, err := os.Open(folder)
	if err != nil {
		return true // it has ended
	}
	defer dir.Close()
	if from > 0 {
		if _, err := dir.Seek(int64(from+dots), io.SeekStart); err != nil {
			return true
		}
	}
	for {
		names, _ := dir.Readdirnames(256)
		if len(names) == 0 {
			return true
		}
		for _, name := range names {
			if !call(dir, name) {
				return false
			}
		}
	}
}

// threads looks at the descriptors of each thread that has its own; false when it came to
// the end of the container's part.
func (w *walk) threads() bool {
	other := w.at.pid
	return each(path(w.Proc, w.at.pid, "task"), w.at.thread, func(_ *os.File, name string) bool {
		if !w.take() {
			return false
		}
		tid, err := strconv.Atoi(name)
		if err == nil && (tid == w.at.pid || !sameFiles(tid, w.at.pid) && (other == w.at.pid || !sameFiles(tid, other))) {
			other = tid
			if !w.descriptors(tid) {
				return false
			}
		}
		w.at.thread, w.at.fd = w.at.thread+1, 0
		return true
	})
}

func (w *walk) descriptors(tid int) bool {
	return each(w.descriptor(w.at.pid, tid, "fd"), w.at.fd, func(dir *os.File, name string) bool {
		fd, err := strconv.Atoi(name)
		if err != nil {
			return true
		}
		w.at.fd = fd
		if !w.take() {
			return false
		}
		if uuid := deviceAt(int(dir.Fd()), name, w.numbers); uuid != "" && !w.seen[uuid] {
			w.seen[uuid] = true
			w.meet(w.reading, descriptor{pid: w.at.pid, tid: tid, fd: fd, uuid: uuid}, w.numbers)
		}
		return true
	})
}

// descriptor is one that leads to a device.
type descriptor struct {
	pid, tid, fd int
	uuid         string
}

func (a *Auditor) descriptor(pid, tid int, file string) string {
	return filepath.Join(path(a.Proc, pid, "task"), strconv.Itoa(tid), file)
}

// deviceAt is the UUID of the device behind a link, empty for anything else. What the kernel
// has of it is enough: its file system may be a tenant's, or hang.
func deviceAt(dir int, name string, numbers map[uint64]string) string {
	var of unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &of)
	if err != nil || of.Mode&unix.S_IFMT != unix.S_IFCHR {
		return ""
	}
	return numbers[unix.Mkdev(of.Rdev_major, of.Rdev_minor)]
}

// opened reports if a descriptor is of an open device: one of O_PATH, which every
// process can have of a node that it has made, leads to no driver.
func (a *Auditor) opened(d descriptor) bool {
	file, err := os.Open(filepath.Join(a.descriptor(d.pid, d.tid, "fdinfo"), strconv.Itoa(d.fd)))
	if err != nil {
		return false
	}
	defer file.Close()
	text := make([]byte, 256)
	n, _ := file.Read(text)
	for line := range strings.Lines(string(text[:n])) {
		if word, is := strings.CutPrefix(line, "flags:"); is {
			flags, err := strconv.ParseUint(strings.TrimSpace(word), 8, 64)
			return err == nil && flags&unix.O_PATH == 0
		}
	}
	return false
}

// meet judges a descriptor that leads to a device.
func (a *Auditor) meet(in *reading, d descriptor, numbers map[uint64]string) {
	wrong, mayEnd := a.judge(in.holder, d.uuid)
	if !wrong || !a.opened(d) {
		return
	}
	p, _, lives := identify(a.Proc, d.pid)
	if !lives {
		return
	}
	if in.found == nil {
		in.found = map[string]int{}
	}
	in.found[d.uuid]++
	at := place{container: in.holder.ID, uuid: d.uuid}
	const passed = "a descriptor was passed to it, which no device cgroup refuses; "
	did := "the container was created without the node agent, which cannot know whether the device was given to it: delete the pod and ask for " + string(v1alpha1.ResourceCore)
	switch {
	case mayEnd && a.End:
		switch ended, err := a.end(p, d, numbers); {
		case err != nil:
			did = fmt.Sprintf("%sthe process cannot be ended (%v): delete the pod", passed, err)
		case ended:
			a.round.ended[at]++
			did = passed + "the process is ended"
		default:
			did = passed + "it has closed that one before it was ended: delete the pod if this comes again"
		}
	case mayEnd:
		did = passed + "delete the pod; such processes are ended where the chart's node.endDeviceHolders says so"
	}
	last, before := a.round.warned[at]
	now := a.Now()
	a.round.warned[at] = now
	if before && now.Sub(last) <= quiet {
		return
	}
	a.Log.Info("A process holds a device without a slice of it", "pod", in.holder.Pod.Namespace+"/"+in.holder.Pod.Name, "container", in.holder.Name, "process", p.String(), "gpu", d.uuid)
	a.Report.Warn(in.holder.Pod.Of(in.holder.Name), ReasonHolder, fmt.Sprintf(
		"process %s of container %s holds device %s, of which the container has no slice: %s", p, in.holder.Name, d.uuid, did))
}

// judge reports if a container may not hold a device, and whether that is known well
// enough to end a process for it.
func (a *Auditor) judge(holder hooks.Holder, uuid string) (wrong, mayEnd bool) {
	if !holder.Sliced {
		return true, holder.Kept
	}
	entry, found := a.Table.Get(holder.ID)
	if !found || slices.ContainsFunc(entry.Grants, func(g ledger.Grant) bool { return g.UUID == uuid }) {
		return false, false // it ends just now, or has a slice
	}
	return true, holder.Kept && len(entry.Grants) > 0
}

// end ends a process, if it still holds what it was found to hold.
func (a *Auditor) end(p process, d descriptor, numbers map[uint64]string) (bool, error) {
	return a.kill(p, func(now process) bool {
		holder, found := holderOf(a.Containers, now)
		if !found || deviceAt(unix.AT_FDCWD, filepath.Join(a.descriptor(d.pid, d.tid, "fd"), strconv.Itoa(d.fd)), numbers) != d.uuid || !a.opened(d) {
			return false
		}
		_, mayEnd := a.judge(holder, d.uuid)
		return mayEnd
	})
}

// kill ends a process, if it still is the one that it was and still is what ought to end. It is
// held by a descriptor before that is looked at, so that a number which is used again harms
// nobody.
func (a *Auditor) kill(p process, still func(now process) bool) (bool, error) {
	held, err := unix.PidfdOpen(p.pid, 0)
	if err == unix.ESRCH {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(held)
	now, _, lives := identify(a.Proc, p.pid)
	if !lives || now.start != p.start || !still(now) {
		return false, nil
	}
	return true, unix.PidfdSendSignal(held, unix.SIGKILL, nil, 0)
}

// sameFiles reports if two threads have one table of descriptors. Where the kernel does
// not say, they may have two.
func sameFiles(one, other int) bool {
	const kcmpFiles = 2
	order, _, failed := unix.Syscall6(unix.SYS_KCMP, uintptr(one), uintptr(other), kcmpFiles, 0, 0, 0)
	return failed == 0 && order == 0
}
