// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// mounted are the mounts below a folder that this process sees.
func mounted(t *testing.T, dir string) string {
	t.Helper()
	return mountsOf(t, "self", dir)
}

func mountsOf(t *testing.T, process any, below string) string {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%v/mountinfo", process)))(t)
	var found []string
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; at == below || strings.HasPrefix(at, below+"/") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

// within runs a program with what a container's adjustment gives it as SharedMemory, as
// the process that is started.
func within(adjust *api.ContainerAdjustment, program string, args ...string) *exec.Cmd {
	source := ""
	for _, m := range adjust.GetMounts() {
		if m.GetDestination() == SharedMemory {
			source = m.GetSource()
		}
	}
	script := `mount --bind "$0" ` + SharedMemory + ` && exec "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, source, program}, args...)...)
}

// first is the container's first process, which has what it is given and waits.
func (n *node) first(c mode.Container) uint32 {
	n.t.Helper()
	adjust := &api.ContainerAdjustment{}
	must.Do(n.t, n.Inject(c, adjust))
	cmd := within(adjust, "sh", "-c", "echo ready; read end")
	in := must.Get(cmd.StdinPipe())(n.t)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.Do(n.t, err)
	n.t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if said := make([]byte, 6); func() error { _, err := out.Read(said); return err }() != nil {
		n.t.Fatal("a container's first process does not start")
	}
	return uint32(cmd.Process.Pid)
}

// daemon is the PID of the node's control daemon.
func (n *node) daemon() int {
	n.t.Helper()
	all := n.processes()
	at := slices.IndexFunc(all, func(p Process) bool { return !p.Server })
	if at < 0 {
		n.t.Fatalf("processes %+v", all)
	}
	return all[at].PID
}

// The daemon, its server and the containers of a device have one tmpfs as /dev/shm, which
// nobody else has there; it stays for the next agent and the next daemon, and goes with the
// last slice.
func TestSharedMemory(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { sharedMemory(t, newNode(t, driver)) })
	}
}

func sharedMemory(t *testing.T, n *node) {
	nodes := mountsOf(t, "self", SharedMemory)
	c := n.grant("a", 30, 1000)
	n.containers = []mode.Container{c}
	dir := n.files.folder(n.uuid())
	first := n.first(c)
	processes := n.processes()
	if len(processes) != 2 {
		t.Fatalf("processes %+v", processes)
	}
	for _, p := range processes {
		if line := mountsOf(t, p.PID, SharedMemory); !strings.Contains(line, "vernier-mps") || strings.Contains(line, "shared:") {
			t.Errorf("process %+v has %q", p, line)
		}
	}
	for _, pid := range []int{processes[0].PID, processes[1].PID, int(first)} {
		if is, err := n.program.Shares(dir, pid); !is || err != nil {
			t.Errorf("process %d does not share it: %v", pid, err)
		}
	}
	if is, err := n.program.Shares(dir, os.Getpid()); is || err != nil {
		t.Errorf("everybody on the node shares it, %v", err)
	}
	if now := mountsOf(t, "self", SharedMemory); now != nodes {
		t.Errorf("the node has %q, want %q", now, nodes)
	}
	line := mounted(t, dir)
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, "nosuid,nodev,noexec") {
		t.Errorf("mounted %q", line)
	}
	var system unix.Statfs_t
	var memory unix.Sysinfo_t
	must.Do(t, errors.Join(unix.Statfs(shared(dir), &system), unix.Sysinfo(&memory)))
	if size, all := system.Blocks*uint64(system.Bsize), memory.Totalram*uint64(memory.Unit); size == 0 || size > all/2+uint64(os.Getpagesize()) {
		t.Errorf("it takes up to %d of %d bytes", size, all)
	}
	if info, err := os.Stat(shared(dir)); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	n.allocates(c, 1000)
	// A client that does not have it is none.
	alone := n.command(c, nil, "cudademo", "--alloc", "1")
	alone.Path, alone.Args = alone.Args[6], alone.Args[6:]
	if said, _ := alone.CombinedOutput(); !strings.Contains(string(said), "MPS_CONNECTION_FAILED") {
		t.Errorf("without its /dev/shm a client says %q", said)
	}

	// What the containers have is the next daemon's, too.
	keep := filepath.Join(shared(dir), "keep")
	must.Do(t, os.WriteFile(keep, nil, 0o666))
	n.restart(n.files.dir, n.program)
	must.Do(t, n.Settle())
	must.Do(t, n.program.End(slices.Clone(processes)))
	must.Do(t, n.Look(time.Now()))
	if _, err := os.Stat(keep); err != nil || mounted(t, dir) != line {
		t.Errorf("it is another one: %v, %q, want %q", err, mounted(t, dir), line)
	}
	if _, err := n.Apply(c, first); err != nil {
		t.Error(err)
	}
	if _, err := n.Apply(c, uint32(os.Getpid())); err == nil || !strings.Contains(err.Error(), "mountPropagation: Bidirectional") {
		t.Errorf("a container with another /dev/shm: %v", err)
	}

	// One that nobody has any more is made anew.
	n.containers = nil
	must.Do(t, n.program.End([]Process{{PID: n.daemon(), start: start(t, n.daemon())}}))
	n.settled()
	if _, err := os.Stat(keep); !os.IsNotExist(err) {
		t.Errorf("what was left in it is there still: %v", err)
	}
	n.ledger.Spec.Devices = nil
	must.Do(t, n.Settle())
	if left := mounted(t, n.files.dir); left != "" {
		t.Errorf("after the last slice:\n%s", left)
	}
}

func start(t *testing.T, pid int) uint64 {
	t.Helper()
	of := must.Get(procfs.NewProc(pid))(t)
	stat := must.Get(of.Stat())(t)
	return stat.Starttime
}

// settled waits for the agent to have all as it should be: what ends may take a moment.
func (n *node) settled() {
	n.t.Helper()
	n.await(func() error { return errors.Join(n.Look(time.Now()), n.Settle()) })
}

// After a reboot nothing is mounted and nothing runs; what is written down is there.
func TestSharedMemoryAfterAReboot(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	c := n.grant("a", 30, 1000)
	dir := n.files.folder(n.uuid())
	must.Do(t, errors.Join(n.program.End(n.processes()), n.program.Unmount(dir)))
	n.restart(n.files.dir, n.program)
	n.settled()
	if _, err := n.Apply(c, n.first(c)); err != nil {
		t.Error(err)
	}
	n.allocates(c, 1000)
}

// Somebody unmounts it: what is there goes on, and new containers wait until all have the
// same one again.
func TestSharedMemoryIsUnmounted(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver555)
	c := n.grant("a", 30, 1000)
	first, before := n.first(c), n.daemon()
	must.Do(t, n.program.Unmount(n.files.folder(n.uuid())))
	if _, err := n.Apply(c, first); err == nil || !strings.Contains(err.Error(), "nobody unmounts") {
		t.Errorf("%v", err)
	}
	n.settled()
	if n.daemon() == before {
		t.Error("the daemon has another one than new containers")
	}
	if _, err := n.Apply(c, n.first(c)); err != nil {
		t.Error(err)
	}
	n.allocates(c, 1000)
}

// A daemon in another root has the tmpfs there, and its own folder where that root is
// mounted read-only, as the node's is in the agent's container.
func TestSharedMemoryInAnotherRoot(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver535)
	root, state := t.TempDir(), filepath.Dir(n.sim.State)
	// The simulated machine stays writable, as a machine does.
	err := unix.Mount(state, state, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("/", root, "", unix.MS_BIND|unix.MS_REC, "")
	}
	must.Do(t, err)
	t.Cleanup(func() {
		must.Report(t, errors.Join(unix.Unmount(root, unix.MNT_DETACH), unix.Unmount(state, unix.MNT_DETACH)))
	})
	must.Do(t, unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	n.program.Root = root
	c := n.grant("a", 30, 1000)
	if _, err := n.Apply(c, n.first(c)); err != nil {
		t.Error(err)
	}
	n.allocates(c, 1000)
}

// halts is an agent's programs until it dies before or after its nth step with mounts and
// processes.
type halts struct {
	*Program
	left  int
	after bool
}

func (h *halts) step(do func() error) error {
	h.left--
	if h.left < 0 || h.left == 0 && !h.after {
		return errDead
	}
	err := do()
	if h.left == 0 {
		return errDead
	}
	return err
}

func (h *halts) Mount(dir string, percent int) error {
	return h.step(func() error { return h.Program.Mount(dir, percent) })
}
func (h *halts) Unmount(dir string) error {
	return h.step(func() error { return h.Program.Unmount(dir) })
}
func (h *halts) Start(dir, uuid string, driver branch) error {
	return h.step(func() error { return h.Program.Start(dir, uuid, driver) })
}
func (h *halts) End(all []Process) error {
	return h.step(func() error { return h.Program.End(all) })
}

// Invariant 6: whatever step an agent dies at, the next one serves the slices that there
// are with one tmpfs for all, and with the last of them it is gone.
func TestSharedMemoryAfterACrash(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver555)
	n.patience = briefly
	for step := 1; ; step++ {
		dead := &halts{Program: n.program, left: step/2 + 1, after: step%2 == 0}
		n.restart(n.files.dir, dead)
		n.ledger.Spec.Devices = nil
		err := n.Prepare(n.enter("gone", 20, 500))
		n.ledger.Spec.Devices = nil
		err = errors.Join(err, n.Settle())

		n.restart(n.files.dir, n.program)
		if step%3 == 0 {
			if bad := n.Settle(); bad != nil {
				t.Fatalf("step %d: %v", step, bad)
			}
			if left := mounted(t, n.files.dir); left != "" {
				t.Errorf("step %d: left\n%s", step, left)
			}
		}
		c := n.grant("stays", 30, 1000)
		if _, bad := n.Apply(c, n.first(c)); bad != nil {
			t.Errorf("step %d: %v", step, bad)
		}
		if now := mounted(t, n.files.dir); strings.Count(now, "\n") != 1 {
			t.Errorf("step %d: mounted\n%s", step, now)
		}
		n.ledger.Spec.Devices = nil
		if bad := n.Settle(); bad != nil {
			t.Fatalf("step %d: %v", step, bad)
		}
		if left := mounted(t, n.files.dir); left != "" {
			t.Errorf("step %d: left\n%s", step, left)
		}
		if err == nil {
			return // it did not die any more
		}
	}
}

// A daemon lives for long, and volumes of pods come and go: it holds none back that is
// unmounted on the node.
func TestDaemonHoldsNoVolume(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver555)
	volume := t.TempDir()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil { // as a node's
		t.Fatal(err)
	}
	must.Do(t, unix.Mount("volume", volume, "tmpfs", 0, ""))
	n.grant("a", 30, 1000)
	before, nodes := mountsOf(t, n.daemon(), volume), mountsOf(t, "self", SharedMemory)
	must.Do(t, unix.Unmount(volume, 0))
	if after := mountsOf(t, n.daemon(), volume); before == "" || after != "" {
		t.Errorf("the daemon had %q, and after the unmount %q", before, after)
	}
	if strings.Contains(nodes, "vernier-mps") {
		t.Errorf("the node has %q", nodes)
	}
}

// disguised is a tenant's process that looks like one of the folder's by all that its
// owner decides: its command line and its environment. It is in a container, so it has
// another PID namespace and another /dev/shm.
func (n *node) disguised(name string) *exec.Cmd {
	n.t.Helper()
	tail := must.Get(exec.LookPath("tail"))(n.t)
	cmd := exec.Command(tail)
	cmd.Args = []string{name, foreground, "/dev/null"}
	cmd.Env = []string{envPipe + "=" + pipes(n.files.folder(n.uuid()))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	must.Do(n.t, cmd.Start())
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// A tenant's process that goes by a daemon's name, or a server's, ends no daemon and keeps
// none from being started.
func TestDisguisedProcess(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver555)
	server := n.disguised(serverName)
	c := n.grant("a", 30, 1000)
	n.containers = []mode.Container{c}
	dir := n.files.folder(n.uuid())
	before, err := n.program.Processes(dir)
	if err != nil || len(before) != 2 {
		t.Fatalf("processes %+v, %v", before, err)
	}

	control := n.disguised(controlName)
	n.restart(n.files.dir, n.program)
	must.Report(t, n.Settle())
	c = n.grant("b", 60, 2000)
	if _, err := n.Apply(c, n.first(c)); err != nil {
		t.Error(err)
	}
	if after, err := n.program.Processes(dir); err != nil || !slices.Equal(before, after) {
		t.Errorf("processes %+v, %v; want %+v", after, err, before)
	}
	for _, cmd := range []*exec.Cmd{server, control} {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)); err != nil {
			t.Errorf("the tenant's process was ended: %v", err)
		}
	}
}

// A client that says anything to its daemon, comes again and again and writes where the real
// one would log: its neighbour computes, the daemon is the same, and its logs stay short.
func TestHostileMPSClient(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { hostileClient(t, newNode(t, driver)) })
	}
}

func hostileClient(t *testing.T, n *node) {
	c, neighbour := n.grant("a", 30, 1000), n.grant("b", 50, 2000)
	n.allocates(c, 1000)
	s, _ := n.server(n.uuid())
	space, _ := s.space(c, limitsOf(c.Grants[0]))
	own := n.files.clients(n.uuid(), space)
	before := n.processes()

	said := [][]byte{nil, {0}, bytes.Repeat([]byte{0xff}, 64<<10)}
	if n.protocol(n.uuid()) == legacyProtocol { // in the other root of the node commands, as this test is (docs/concepts/modes.md)
		said = append(said, []byte("quit -t 0\n"), []byte("set_default_active_thread_percentage 1\n"))
	}
	for _, text := range said {
		for range 50 {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(own, "control")})
			}
			must.Do(t, err)
			_ = unix.Send(fd, text, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // it may hang up
			must.Do(t, unix.Close(fd))
		}
	}
	if at, err := os.Readlink(filepath.Join(own, "log")); at != os.DevNull && n.protocol(n.uuid()) == legacyProtocol {
		t.Errorf("what it finds in place of the daemon's pipe for logs: %q, %v", at, err)
	}

	log := filepath.Join(n.files.folder(n.uuid()), "log", "daemon.log")
	f := must.Get(os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0))(t)
	must.Get(f.Write(make([]byte, maxLog+1)))(t)
	must.Do(t, f.Close())
	must.Report(t, n.Look(time.Now()))
	n.allocates(neighbour, 2000)
	if info, err := os.Stat(log); err != nil || info.Size() > maxLog {
		t.Errorf("its log: %v, %v", info, err)
	}
	if now := n.processes(); len(now) != len(before) || now[0] != before[0] || now[1] != before[1] || len(n.warnings) > 0 {
		t.Errorf("processes %+v, before %+v; the pods were warned %q", now, before, n.warnings)
	}
}
