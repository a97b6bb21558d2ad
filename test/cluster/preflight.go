// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/cluster/machine"
	"vernier.dev/vernier/test/cluster/tools"
)

// Problem is something that the machine lacks, and what to do about it.
type Problem struct {
	What   string
	Remedy string
}

// Problems are all that Preflight found.
type Problems []Problem

func (p Problems) Error() string {
	var b strings.Builder
	b.WriteString("this machine lacks what a cluster needs:")
	for _, problem := range p {
		fmt.Fprintf(&b, "\n  %s\n    remedy: %s", problem.What, problem.Remedy)
	}
	return b.String()
}

const (
	mib = 1 << 20
	// A cluster of two nodes and its pods; a build of Kubernetes from nothing.
	runMemory, buildMemory = 1536 * mib, 3072 * mib
	runDisk, buildDisk     = 1024 * mib, 6 * 1024 * mib
)

// Preflight says what the machine lacks for a cluster of that configuration. It
// changes nothing.
func Preflight(cfg Config) Problems {
	if err := cfg.setDefaults(); err != nil {
		return Problems{{err.Error(), "correct the configuration"}}
	}
	var p Problems
	add := func(what, remedy string, args ...any) { p = append(p, Problem{what, fmt.Sprintf(remedy, args...)}) }
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		add("this is "+runtime.GOOS+" on "+runtime.GOARCH, "use Linux on amd64")
		return p
	}
	root := os.Geteuid() == 0
	if !root {
		add("this is not root", "run it again with sudo -E")
	}
	build := missingTools(add)
	commands(add, build)
	memory(add, build)
	disk(add, cfg.Dir, build)
	controlGroups(add)
	if _, err := os.Stat("/dev/kmsg"); err != nil {
		add("there is no /dev/kmsg, which the kubelet reads", "mknod /dev/kmsg c 1 11")
	}
	if root {
		network(add)
	}
	return p
}

type adder func(what, remedy string, args ...any)

func missingTools(add adder) (build bool) {
	missing, err := tools.Missing(tools.All...)
	if err != nil {
		add(err.Error(), "run it inside a checkout, with Go in PATH")
	}
	return len(missing) > 0
}

// packages of Debian by the command or file that tells whether they are there.
func commands(add adder, build bool) {
	need := map[string]string{"nsenter": "util-linux", "mount": "mount", "busybox": "busybox-static"}
	if build {
		need["gcc"], need["pkg-config"] = "gcc", "pkg-config"
	}
	var absent, packages []string
	for command, pkg := range need {
		if _, err := exec.LookPath(command); err != nil {
			absent, packages = append(absent, command), append(packages, pkg)
		}
	}
	if build {
		if _, err := os.Stat("/usr/include/seccomp.h"); err != nil {
			absent, packages = append(absent, "seccomp.h"), append(packages, "libseccomp-dev")
		}
	}
	if len(absent) > 0 {
		slices.Sort(absent)
		slices.Sort(packages)
		add("not installed: "+strings.Join(absent, ", "), "apt-get install -y %s", strings.Join(packages, " "))
	}
}

func memory(add adder, build bool) {
	want := int64(runMemory)
	if build {
		want = buildMemory
	}
	data, _ := os.ReadFile("/proc/meminfo")
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 || fields[0] != "MemAvailable:" {
			continue
		}
		if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil && kib*1024 < want {
			add(fmt.Sprintf("%d MiB of memory are available, %d MiB are needed", kib/1024, want/mib), "end other programs, or use a larger machine")
		}
	}
}

func disk(add adder, dir string, build bool) {
	at, want := dir, int64(runDisk)
	for _, err := os.Stat(at); err != nil; _, err = os.Stat(at) {
		at = filepath.Dir(at)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err == nil {
		if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
			add(dir+" is on overlayfs, on which containers cannot have their own", "choose another with --dir, such as one in /dev/shm")
		}
		freeSpace(add, dir, fs, want)
	}
	if cache, err := tools.CacheDir(); err == nil && build {
		if err := os.MkdirAll(cache, 0o755); err == nil && unix.Statfs(cache, &fs) == nil {
			freeSpace(add, cache, fs, buildDisk)
		}
	}
	if supported, err := os.ReadFile("/proc/filesystems"); err == nil && !bytes.Contains(supported, []byte("\toverlay\n")) {
		add("the kernel has no overlayfs", "modprobe overlay")
	}
}

func freeSpace(add adder, dir string, fs unix.Statfs_t, want int64) {
	if free := int64(fs.Bavail) * fs.Bsize; free < want {
		add(fmt.Sprintf("%s has %d MiB free, %d MiB are needed", dir, free/mib, want/mib), "free some, or choose another folder (--dir, VERNIER_CACHE)")
	}
}

func controlGroups(add adder) {
	h, err := machine.FindHierarchies()
	if err != nil {
		add(err.Error(), "mount them, as root")
		return
	}
	if unix.Access(h.Unified, unix.W_OK) != nil {
		add(h.Unified+" cannot be written", "run as root; in a container, give it its own writable control groups")
	}
	for _, c := range machine.Needed {
		if !h.Has(c) {
			add("the kernel offers no control group controller "+c, "enable it (kernel command line: cgroup_enable=%s)", c)
		}
	}
}

// network tries what the cluster will do, in a namespace that goes at once.
func network(add adder) {
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return errors.Join(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge0"}}),
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}))
	})
	if err != nil {
		add(fmt.Sprintf("no network namespace with a bridge and a veth pair: %v", err), "modprobe -a bridge veth; in a container, start it privileged")
	}
}
