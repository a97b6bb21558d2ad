// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// process is one process at one time.
type process struct {
	pid int
	// start is its start time as the kernel counts it: with the PID it names the
	// process, for numbers are used again.
	start uint64
	// name is its command's, which the process itself can set.
	name string
	// ids are the words of its cgroup's path, outermost first: the runtime's id of
	// its container is one of them, whatever stands around it. A tenant may name what
	// is further in.
	ids []string
}

// look reads a process; false when it has ended.
func look(proc string, pid int) (process, bool) {
	p, state, found := identify(proc, pid)
	return p, found && state != "Z" && state != "X"
}

// identify reads a process and the state of its first thread: others may live on when that
// has ended.
func identify(proc string, pid int) (p process, state string, found bool) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return p, "", false
	}
	of, err := fs.Proc(pid)
	if err != nil {
		return p, "", false
	}
	stat, err := of.Stat()
	if err != nil {
		return p, "", false
	}
	p = process{pid: pid, start: stat.Starttime, name: stat.Comm, ids: cgroup(proc, pid)}
	return p, stat.State, p.ids != nil
}

// cgroup is the words of a process' cgroups, nil when it has ended.
func cgroup(proc string, pid int) (ids []string) {
	cgroups, err := os.ReadFile(path(proc, pid, "cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(cgroups)) {
		ids = append(ids, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune("/-:.\n", r) })...)
	}
	return ids
}

// holdsCounters reports whether the process has its container's counters mapped, as
// every process does that the limiter has let use CUDA. It asks the kernel, for
// the processes that do not show in the counters themselves: a program that closes
// descriptors which aren't its own loses its mark there and stays limited.
func (a *Auditor) holdsCounters(pid int) bool {
	maps, err := os.Open(path(a.Proc, pid, "maps"))
	if err != nil {
		return false
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if strings.Contains(lines.Text(), " "+layout.CountersPath) {
			return true
		}
	}
	return false
}

func path(proc string, pid int, file string) string {
	return filepath.Join(proc, strconv.Itoa(pid), file)
}

func (p process) String() string { return fmt.Sprintf("%d (%q)", p.pid, p.name) }
