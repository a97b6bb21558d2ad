// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"k8s.io/utils/cpuset"
)

// Processors reads where containers are, and how much processor time they and the node use. The
// zero value is not usable; see NewProcessors.
type Processors struct {
	proc string
	m    mounts
}

// NewProcessors looks for the hierarchies in the mount table of the process. The proc is
// where procfs is mounted, as /proc. It must be the node's own.
func NewProcessors(proc string) (*Processors, error) {
	m, err := readMounts(proc)
	return &Processors{proc: proc, m: m}, err
}

// V2 reports whether the runtime sets limits by v2: it does where nothing of v1 is.
func (p *Processors) V2() bool { return p.m.v2 != "" && len(p.m.v1) == 0 }

// Load is what the node's processors have done since it was booted.
type Load struct {
	CPUs int
	// Busy of All, in ticks of 10 ms.
	Busy, All uint64
}

// Node reads it.
func (p *Processors) Node() (Load, error) {
	fs, err := procfs.NewFS(p.proc)
	var stat procfs.Stat
	if err == nil {
		stat, err = fs.Stat()
	}
	if err == nil && len(stat.CPU) == 0 {
		err = errors.New("it names no processor")
	}
	if err != nil {
		return Load{}, fmt.Errorf("reading the node's processor time: %w", err)
	}
	all := stat.CPUTotal // what guests use is in User
	busy := all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ + all.Steal
	ticks := func(seconds float64) uint64 { return uint64(math.Round(100 * seconds)) }
	return Load{CPUs: len(stat.CPU), Busy: ticks(busy), All: ticks(busy + all.Idle + all.Iowait)}, nil
}

// Container reads what the container of that id has used, pid being a process of
// its.
func (p *Processors) Container(pid uint32, container string) (time.Duration, error) {
	// The v2 hierarchy counts also where v1 has the controllers; but not every
	// runtime puts containers into it then.
	dir, err := own(p.proc, pid, container, "")
	if err == nil && p.m.v2 != "" {
		return usageUsec(filepath.Join(p.m.v2, dir, "cpu.stat"))
	}
	dir, err1 := own(p.proc, pid, container, "cpuacct")
	mount := p.m.v1["cpuacct"]
	if err1 != nil || mount == "" {
		return 0, errors.Join(err, err1)
	}
	text, err := os.ReadFile(filepath.Join(mount, dir, "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(ns), err
}

// PodCPUs are the CPUs of the cgroup of a pod, pid being a process of its sandbox, by v1.
// There the kernel refuses a container any that its pod has not, and one that goes
// offline is gone from every cgroup for good. By v2 it takes what there is of them.
//
// Where the agent sees only its own part of the hierarchy, as a container does in v1, the
// node's first process sees all of it.
func (p *Processors) PodCPUs(pid uint32, sandbox string) (cpuset.CPUSet, error) {
	dir, err := own(p.proc, pid, sandbox, "cpuset")
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	mount := p.m.v1["cpuset"]
	if mount == "" {
		return cpuset.CPUSet{}, errors.New("the cpuset controller is not mounted")
	}
	file := filepath.Join(mount, filepath.Dir(dir), "cpuset.effective_cpus")
	text, err := os.ReadFile(file)
	if err != nil {
		text, err = os.ReadFile(filepath.Join(p.proc, "1/root", file))
	}
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	return cpuset.Parse(strings.TrimSpace(string(text)))
}

// Pressure is for how long at least one task of the container of that id has waited for a
// CPU. The pid is of a process of its. Only v2 has PSI's total, on a kernel
// not booted without it.
func (p *Processors) Pressure(pid uint32, container string) (time.Duration, error) {
	dir, err := own(p.proc, pid, container, "")
	if err != nil {
		return 0, err
	}
	if p.m.v2 == "" {
		return 0, errNoV2
	}
	text, err := os.ReadFile(filepath.Join(p.m.v2, dir, "cpu.pressure"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		// some avg10=0.00 avg60=0.00 avg300=0.00 total=0
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "some" {
			usec, _ := strings.CutPrefix(fields[len(fields)-1], "total=")
			n, err := strconv.ParseInt(usec, 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("the cpu.pressure of container %s has no line of some tasks", container)
}

func usageUsec(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if usec, found := strings.CutPrefix(line, "usage_usec "); found {
			n, err := strconv.ParseInt(strings.TrimSpace(usec), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s does not say usage_usec", file)
}
