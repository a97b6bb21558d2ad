// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Processors reads how much processor time the node and its containers use. The
// zero value is not usable; see NewProcessors.
type Processors struct {
	proc string
	m    mounts
}

// NewProcessors looks for the hierarchies in the mount table of the process. proc is
// where procfs is mounted, as /proc; it must be the node's own.
func NewProcessors(proc string) (*Processors, error) {
	m, err := readMounts(proc)
	return &Processors{proc: proc, m: m}, err
}

// V2 tells whether the runtime sets limits by v2: it does where nothing of v1 is.
func (p *Processors) V2() bool { return p.m.v2 != "" && len(p.m.v1) == 0 }

// Load is what the node's processors have done since it was booted.
type Load struct {
	CPUs int
	// Busy of All, in any unit.
	Busy, All uint64
}

// Node reads it.
func (p *Processors) Node() (Load, error) {
	text, err := os.ReadFile(filepath.Join(p.proc, "stat"))
	if err != nil {
		return Load{}, fmt.Errorf("reading the node's processor time: %w", err)
	}
	var l Load
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu"):
		case fields[0] != "cpu":
			l.CPUs++
		default:
			// user nice system idle iowait irq softirq steal; what guests use is in user.
			for i, field := range fields[1:9] {
				n, err := strconv.ParseUint(field, 10, 64)
				if err != nil {
					return Load{}, fmt.Errorf("reading the node's processor time: %w", err)
				}
				l.All += n
				if i != 3 && i != 4 {
					l.Busy += n
				}
			}
		}
	}
	if l.CPUs == 0 || l.All == 0 {
		return Load{}, fmt.Errorf("reading the node's processor time: %s/stat says nothing of it", p.proc)
	}
	return l, nil
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
