// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// asTenant in the environment makes this program a container's process.
const asTenant = "VERNIER_TEST_TENANT"

func init() {
	if os.Getenv(asTenant) != "" {
		runtime.LockOSThread() // the first thread: what hides does so in another
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(asTenant) != "" {
		serveTenant()
		return
	}
	os.Exit(m.Run())
}

// serveTenant does what the lines of its input say, and answers each by one.
func serveTenant() {
	held := -1
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		err := error(nil)
		switch words[0] {
		case "open":
			flags, _ := strconv.Atoi(words[2])
			held, err = unix.Open(words[1], flags|unix.O_CLOEXEC, 0)
		case "close":
			err = unix.Close(held)
		case "many": // so many descriptors before the next one
			n, _ := strconv.Atoi(words[1])
			null, failed := unix.Open("/dev/null", unix.O_RDONLY, 0)
			err = failed
			for range n {
				_, failed := unix.Dup(null)
				err = errors.Join(err, failed)
			}
		case "pass":
			err = pass(words[1], held)
		case "take":
			held, err = take(words[1])
		case "fetch": // from another process
			held, err = fetch(words[1], words[2])
		case "tell":
			fmt.Println(held)
			continue
		case "hide": // in a thread with a table of its own
			done := make(chan error)
			go func() {
				runtime.LockOSThread()
				done <- unix.Unshare(unix.CLONE_FILES)
				select {}
			}()
			err = errors.Join(<-done, unix.Close(held))
		}
		fmt.Println("ok", err)
	}
}

func pass(socket string, fd int) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
	return err
}

func take(socket string) (int, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return -1, err
	}
	defer l.Close()
	fmt.Println("listens")
	c, err := l.Accept()
	if err != nil {
		return -1, err
	}
	defer c.Close()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	return fds[0], err
}

func fetch(pid, fd string) (int, error) {
	of, _ := strconv.Atoi(pid)
	n, _ := strconv.Atoi(fd)
	held, err := unix.PidfdOpen(of, 0)
	if err != nil {
		return -1, err
	}
	return unix.PidfdGetfd(held, n, 0)
}

// tenant is a real process in a real cgroup of a container.
type tenant struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func (c *tenant) pid() int { return c.cmd.Process.Pid }

func (c *tenant) says(words ...string) {
	c.t.Helper()
	must.Get(fmt.Fprintln(c.in, strings.Join(words, " ")))(c.t)
}

func (c *tenant) hears() string {
	c.t.Helper()
	line := must.Get(c.out.ReadString('\n'))(c.t)
	return strings.TrimSpace(line)
}

func (c *tenant) do(words ...string) {
	c.t.Helper()
	c.says(words...)
	if said := c.hears(); said != "ok <nil>" {
		c.t.Fatalf("%v: %s", words, said)
	}
}

// gives passes its descriptor to another by a socket.
func (c *tenant) gives(to *tenant) {
	c.t.Helper()
	socket := filepath.Join(c.t.TempDir(), "socket")
	to.says("take", socket)
	if said := to.hears(); said != "listens" {
		c.t.Fatal(said)
	}
	c.do("pass", socket)
	if said := to.hears(); said != "ok <nil>" {
		c.t.Fatal(said)
	}
}

// machine is the one that the test runs on, on which two character devices that every
// machine has stand for its GPUs.
type machine struct {
	*Auditor
	t      *testing.T
	said   []string
	clock  time.Time
	listed []*api.Container
	pods   []*api.PodSandbox
	plugin *hooks.Plugin
	groups map[string]string
	slices []attach.Entry
}

func newMachine(t *testing.T) *machine {
	if os.Geteuid() != 0 {
		t.Skip("device nodes and cgroups need root")
	}
	m := &machine{t: t, clock: time.Unix(1e9, 0), groups: map[string]string{}}
	m.plugin = &hooks.Plugin{Ledger: noLedger{}, Table: &attach.ContainerTable{}, Report: m, Log: logr.Discard(), Modes: mode.Set{}}
	root := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	for name, minor := range map[string]uint32{"nvidia0": 7, "nvidia1": 8} { // full and random
		must.Do(t, unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))))
	}
	m.Auditor = &Auditor{
		Devices: m, Table: m.plugin.Table, Containers: &m.plugin.Containers, Report: m, Proc: "/proc", DevRoot: root,
		Now: func() time.Time { return m.clock }, Log: logr.Discard(),
	}
	// The usual ones: with a slice of the first device, and without any.
	m.has("sliced", gpu0, nil)
	m.has("plain", "", nil)
	return m
}

func (m *machine) node(name string) string { return filepath.Join(m.DevRoot, "dev", name) }

func (m *machine) Snapshot() (device.Snapshot, bool) {
	return device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: gpu0, Minor: 0}, {UUID: gpu1, Minor: 1}}}, true
}
func (m *machine) Library() (device.Library, error) { return nil, errors.New("no driver") }

func (m *machine) Warn(pod hooks.PodRef, reason, message string) {
	if reason == ReasonHolder {
		m.said = append(m.said, pod.Name+" "+reason+" "+message)
	}
}

// has lists a container, which the agent has created but for what change changes.
func (m *machine) has(name, uuid string, change func(*api.Container)) {
	m.t.Helper()
	pod := &api.PodSandbox{Id: "sandbox-" + name, Name: name, Namespace: "team", Uid: "uid-" + name}
	c := &api.Container{Id: id(name), Name: "main", PodSandboxId: pod.Id, State: api.ContainerState_CONTAINER_CREATED, Linux: &api.LinuxContainer{},
		Env: []string{v1alpha1.EnvVisibleDevices + "=" + v1alpha1.EnvVisibleDevicesVoid}}
	if uuid != "" {
		c.Env = append(c.Env, v1alpha1.EnvSlice+"="+pod.Uid)
		grants := []ledger.Grant{{UUID: uuid, Core: 30, Mem: 1024, DeviceMem: 81920, Mode: v1alpha1.ModeLimiter}}
		m.slices = append(m.slices, attach.Entry{Prepared: true, Sandbox: pod.Id, Container: mode.Container{Pod: types.UID(pod.Uid), Name: "main", ID: c.Id, Grants: grants}})
	}
	if change != nil {
		change(c)
	}
	m.pods, m.listed = append(m.pods, pod), append(m.listed, c)
	m.list()
}

// list has the agent see the containers, and of those with slices which.
func (m *machine) list() {
	m.t.Helper()
	must.Get(m.plugin.Synchronize(m.t.Context(), m.pods, m.listed))(m.t)
	for _, e := range m.slices {
		must.Do(m.t, m.plugin.Table.Attach(e))
	}
}

// group is a container's cgroup.
func (m *machine) group(container string) string {
	m.t.Helper()
	if m.groups[container] != "" {
		return m.groups[container]
	}
	mount := ""
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if before, after, _ := strings.Cut(line, " - "); mount == "" && strings.HasPrefix(after, "cgroup2 ") {
			mount = strings.Fields(before)[4]
		}
	}
	if err != nil || mount == "" {
		m.t.Skip("needs cgroup v2")
	}
	dir := filepath.Join(mount, fmt.Sprintf("audit-%d-%s", os.Getpid(), id(container)))
	must.Do(m.t, os.Mkdir(dir, 0o755))
	m.t.Cleanup(func() {
		must.Report(m.t, os.Remove(dir))
	})
	m.groups[container] = dir
	return dir
}

// runs starts a process in a container.
func (m *machine) runs(container string) *tenant {
	m.t.Helper()
	group := m.group(container)
	c := &tenant{t: m.t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), asTenant+"=1")
	in := must.Get(c.cmd.StdinPipe())(m.t)
	out := must.Get(c.cmd.StdoutPipe())(m.t)
	c.in, c.out = in, bufio.NewReader(out)
	must.Do(m.t, c.cmd.Start())
	m.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	must.Do(m.t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(c.pid())), 0o600))
	return c
}

// looks has the auditor look once around, in as many looks as it takes.
func (m *machine) looks() {
	for before := m.round.number; m.round.number == before; {
		m.LookAtDescriptors()
	}
}

// counts is how many processes of a container hold a device, by the metric.
func (m *machine) counts(container, uuid string) int {
	held, _ := m.Held()
	for _, f := range held {
		if f.Holder.ID == id(container) && f.UUID == uuid {
			return f.Processes
		}
	}
	return 0
}

// A descriptor that was passed is found with whom it was passed to, by whatever way, and
// outlives the slice that it was opened with.
func TestHostileDescriptorIsFound(t *testing.T) {
	for name, passes := range map[string]func(m *machine, from, to *tenant){
		"by a socket": func(m *machine, from, to *tenant) { from.gives(to) },
		"by pidfd_getfd": func(m *machine, from, to *tenant) {
			from.says("tell")
			to.do("fetch", strconv.Itoa(from.pid()), from.hears())
		},
		"hidden in a thread": func(m *machine, from, to *tenant) {
			from.gives(to)
			to.do("hide")
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			from, to := m.runs("sliced"), m.runs("plain")
			from.do("open", m.node("nvidia0"), strconv.Itoa(unix.O_RDWR))
			m.looks()
			if len(m.said) != 0 || m.counts("sliced", gpu0) != 0 {
				t.Fatalf("with a slice: said %q", m.said)
			}
			passes(m, from, to)
			m.looks()
			m.looks()
			if len(m.said) != 1 || !strings.HasPrefix(m.said[0], "plain "+ReasonHolder+" process "+strconv.Itoa(to.pid())) || !strings.Contains(m.said[0], gpu0) {
				t.Errorf("said %q, want one event of the pod without a slice", m.said)
			}
			if m.counts("plain", gpu0) != 1 || m.counts("sliced", gpu0) != 0 {
				held, _ := m.Held()
				t.Errorf("counted %+v", held)
			}
			// Released: who opened it is gone.
			_ = from.cmd.Process.Kill()
			_ = from.cmd.Wait()
			m.looks()
			if m.counts("plain", gpu0) != 1 {
				t.Error("not seen after the release")
			}
			_ = to.cmd.Process.Kill()
			_ = to.cmd.Wait()
			m.looks()
			if held, _ := m.Held(); len(held) != 0 {
				t.Errorf("counted %+v after its end", held)
			}
		})
	}
}

// Which processes that hold a device are reported, and which are ended.
func TestHolders(t *testing.T) {
	const path, readWrite = unix.O_PATH, unix.O_RDWR
	privileged := func(c *api.Container) {
		c.Env = nil
		c.Linux.Resources = &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Type: "a", Access: "rwm"}}}
	}
	for name, c := range map[string]struct {
		uuid, node  string
		flags       int
		change      func(*api.Container)
		lost        bool // the ledger has lost its slices
		found, ends bool
	}{
		"no slice":                    {node: "nvidia0", flags: readWrite, found: true, ends: true},
		"of this device":              {uuid: gpu0, node: "nvidia0", flags: readWrite},
		"of another device":           {uuid: gpu0, node: "nvidia1", flags: readWrite, found: true, ends: true},
		"only a path":                 {node: "nvidia0", flags: path},
		"privileged":                  {node: "nvidia0", flags: readWrite, change: privileged},
		"another's node":              {node: "../../dev/null", flags: readWrite},
		"created without the agent":   {node: "nvidia0", flags: readWrite, change: func(c *api.Container) { c.Env = nil }, found: true},
		"slices that the ledger lost": {uuid: gpu0, node: "nvidia0", flags: readWrite, lost: true, found: true},
		"given before Vernier": {node: "nvidia0", flags: readWrite, change: func(c *api.Container) {
			c.Env, c.Linux.Devices = nil, []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: hooks.NVIDIAMajor}}
		}},
	} {
		for _, end := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ending %t", name, end), func(t *testing.T) {
				m := newMachine(t)
				m.End = end
				m.has("one", c.uuid, c.change)
				if c.lost {
					m.slices[len(m.slices)-1].Grants = nil
					m.list()
				}
				holder, other := m.runs("one"), m.runs("one")
				node := m.node(c.node)
				if c.node == "../../dev/null" {
					node = "/dev/null"
				}
				holder.do("open", node, strconv.Itoa(c.flags))
				m.looks()
				if (len(m.said) == 1) != c.found || (m.counts("one", gpu0)+m.counts("one", gpu1) == 1) != c.found {
					t.Fatalf("said %q, want an event: %t", m.said, c.found)
				}
				if !end || !c.ends {
					holder.do("close")
					return
				}
				if err := holder.cmd.Wait(); err == nil || holder.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Errorf("it ended with %v, want SIGKILL", err)
				}
				other.do("many", "1") // the container goes on
				if !strings.Contains(m.said[0], "is ended") {
					t.Errorf("said %q", m.said)
				}
			})
		}
	}
}

// A number that another process has by then, or a descriptor that is another by then, ends
// nobody.
func TestEndComparesAgain(t *testing.T) {
	m := newMachine(t)
	m.End = true
	c := m.runs("plain")
	c.do("open", m.node("nvidia0"), strconv.Itoa(unix.O_RDWR))
	c.says("tell")
	fd := must.Get(strconv.Atoi(c.hears()))(t)
	p, _, _ := identify(m.Proc, c.pid())
	good := descriptor{pid: c.pid(), tid: c.pid(), fd: fd, uuid: gpu0}
	again, before := p, good
	again.start++
	before.fd = 0
	for _, x := range []struct {
		p process
		d descriptor
	}{{again, good}, {p, before}} {
		if ended, err := m.end(x.p, x.d, m.numbers()); ended || err != nil {
			t.Errorf("%+v: ended %t, %v", x, ended, err)
		}
	}
	c.do("many", "1")
	if ended, err := m.end(p, good, m.numbers()); !ended || err != nil {
		t.Errorf("ended %t, %v", ended, err)
	}
}

// One with a million descriptors and processes holds up the look at nobody else, hides
// nothing for good, and is named.
func TestHostileDescriptorsAreBounded(t *testing.T) {
	m := newMachine(t)
	const share = 100
	m.bounds = bounds{processes: 1 << 20, descriptors: 1 << 20, each: share}
	m.has("honest", "", nil)
	decoys, hides := []*tenant{m.runs("plain"), m.runs("plain")}, m.runs("plain")
	for _, d := range decoys {
		d.do("many", "500")
	}
	hides.do("many", "500")
	hides.do("open", m.node("nvidia0"), strconv.Itoa(unix.O_RDWR))
	honest := m.runs("honest")
	honest.do("open", m.node("nvidia0"), strconv.Itoa(unix.O_RDWR))

	m.LookAtDescriptors()
	if m.round.number != 1 || m.counts("honest", gpu0) != 1 {
		t.Errorf("one look: round %d, it found %q", m.round.number, m.said)
	}
	if m.round.spent > 3*share {
		t.Errorf("%d descriptors were looked at", m.round.spent)
	}
	if _, unread := m.Held(); !slices.ContainsFunc(unread, func(h hooks.Holder) bool { return h.ID == id("plain") }) || len(unread) != 1 {
		t.Errorf("not looked at whole: %+v", unread)
	}
	// 1500 descriptors and some threads, each a share.
	for range 40 {
		m.LookAtDescriptors()
	}
	if m.counts("plain", gpu0) != 1 {
		t.Errorf("what is behind many descriptors was not found: %q", m.said)
	}
	for _, c := range append(decoys, hides) {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
	m.LookAtDescriptors()
	m.LookAtDescriptors()
	if _, unread := m.Held(); len(unread) != 0 || m.counts("plain", gpu0) != 0 {
		t.Errorf("after their end: %+v", unread)
	}
}

// A look has an end, and the next goes on from there.
func TestLookEnds(t *testing.T) {
	m := newMachine(t)
	m.bounds = bounds{processes: 10, descriptors: 1 << 20, each: 1 << 20}
	c := m.runs("plain")
	c.do("open", m.node("nvidia0"), strconv.Itoa(unix.O_RDWR))
	m.LookAtDescriptors()
	if m.round.number != 0 {
		t.Error("a look saw all processes of the machine")
	}
	m.looks()
	if m.counts("plain", gpu0) != 1 {
		t.Error("not found in many looks")
	}
}

// Operations of FUSE.
const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseOpen    = 14
	fuseInit    = 26
)

// tenantsFiles mounts a file system with one file, and counts who asks it for the file's
// attributes. A tenant's would not answer.
func tenantsFiles(t *testing.T) (dir string, asked *atomic.Int32) {
	t.Helper()
	dir, asked = t.TempDir(), &atomic.Int32{}
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	must.Do(t, unix.Mount("test", dir, "fuse", 0, "rootmode=40000,user_id=0,group_id=0,fd="+strconv.Itoa(fuse)))
	served := make(chan struct{})
	t.Cleanup(func() {
		must.Report(t, unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE))
		<-served
		_ = unix.Close(fuse)
	})
	attributes := func(mode uint32) []byte {
		a := make([]byte, 88)
		binary.NativeEndian.PutUint32(a[60:], mode)
		binary.NativeEndian.PutUint32(a[64:], 1) // links
		return a
	}
	go func() {
		defer close(served)
		for in := make([]byte, 1<<17); ; {
			n, err := unix.Read(fuse, in)
			if err == unix.EINTR || err == unix.ENOENT {
				continue
			}
			if err != nil || n < 40 {
				return // unmounted
			}
			var answer []byte
			failed := int32(0)
			switch node := binary.NativeEndian.Uint64(in[16:]); binary.NativeEndian.Uint32(in[4:]) {
			case fuseInit:
				answer = make([]byte, 64)
				binary.NativeEndian.PutUint32(answer, 7)
				binary.NativeEndian.PutUint32(answer[4:], 31)
				binary.NativeEndian.PutUint32(answer[20:], 4096) // a write at most
			case fuseLookup: // what it says is not to be kept
				answer = append(make([]byte, 40), attributes(unix.S_IFREG|0o644)...)
				binary.NativeEndian.PutUint64(answer, 2)
			case fuseGetattr:
				mode := uint32(unix.S_IFDIR | 0o755)
				if node != 1 {
					asked.Add(1)
					mode = unix.S_IFREG | 0o644
				}
				answer = append(make([]byte, 16), attributes(mode)...)
			case fuseOpen:
				answer = make([]byte, 16)
			case fuseForget:
				continue
			default:
				failed = -int32(unix.ENOSYS)
			}
			out := make([]byte, 16, 16+len(answer))
			binary.NativeEndian.PutUint32(out, uint32(16+len(answer)))
			binary.NativeEndian.PutUint32(out[4:], uint32(failed))
			copy(out[8:], in[8:16])
			_, _ = unix.Write(fuse, append(out, answer...))
		}
	}()
	return dir, asked
}

// A file system of a tenant's, or of a server that has gone, is asked nothing: it could
// hold up the look at everybody.
func TestHostileFileSystemIsNotAsked(t *testing.T) {
	m := newMachine(t)
	dir, asked := tenantsFiles(t)
	c := m.runs("plain")
	c.do("open", filepath.Join(dir, "file"), strconv.Itoa(unix.O_RDONLY))
	asked.Store(0)
	m.looks()
	if n := asked.Load(); n != 0 || m.round.readings[id("plain")] == nil {
		t.Errorf("it was asked %d times", n)
	}
	c.do("close")
	// What the test rests on.
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil || asked.Load() == 0 {
		t.Errorf("it counts nothing: %v", err)
	}
}
