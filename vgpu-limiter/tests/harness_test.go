// SPDX-License-Identifier: Apache-2.0

// Package tests runs programs under libvgpu.so on the simulated driver and
// compares what they were told, what the counters say and what the device really
// holds. It owns no code that ships.
package tests

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Codes of the driver, as the programs print them.
const (
	ok           = 0
	invalidValue = 1
	outOfMemory  = 2
	noDevice     = 101
	noContext    = 201
	notPermitted = 800
)

const mib = 1 << 20

// built is what the tests run: made once, in a directory of its own.
type built struct {
	dir string // of vgpu-run and libvgpu.so as they ship, libvgpu-test.so and the programs
	sim string // of the simulated driver's libraries and simgpuctl
}

var build = sync.OnceValues(func() (built, error) {
	bin := os.Getenv("VERNIER_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return built{}, err
	}
	dir := filepath.Join(bin, "vgpu-tests") // shared with no other package's tests, which may run now
	b := built{dir: dir, sim: filepath.Join(dir, "simgpu")}
	if sanitized { // then all is built
		return b, nil
	}
	made, err := making(dir)
	if err != nil {
		return built{}, err
	}
	defer made()
	for _, args := range [][]string{
		{"make", "--no-print-directory", "-C", "../../test/simgpu", "OUT=" + b.sim},
		{"make", "--no-print-directory", "-C", "../..", "BIN=" + b.dir, "limiter"},
		{"make", "--no-print-directory", "-C", "..", "OUT=" + b.dir, "SIMGPU=" + b.sim, "tests"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return built{}, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return b, nil
})

// compiler makes programs for the machine that they run on; make takes the same variable.
func compiler() string { return cmp.Or(os.Getenv("CC"), "gcc") }

// making returns when nobody else makes anything in the folder, in this process or in
// another that runs these tests, and how to say that it is made.
func making(dir string) (made func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return func() { _ = lock.Close() }, nil
}

// container is one simulated node with one container on it: a directory with
// the driver's state, the limits and the counters, in which programs run. The
// library built for tests has these paths, relative to where it runs; nothing
// else differs from the one that ships.
type container struct {
	t     *testing.T
	dir   string
	state string // of the driver
	built
	clock    *clock // of its node, where that isn't the machine's
	attached bool   // to a node's loop
}

// share is what the container may use of a device; a device without memory is
// left out of its limits.
type share struct{ core, mib int }

func newContainer(t *testing.T, shares ...share) *container {
	t.Helper()
	return newContainerOn(t, 0, shares...)
}

// newLinkedContainer is on devices at NVSwitches, of a fabric of several machines, whose
// contexts take so many MiB.
func newLinkedContainer(t *testing.T, contextMiB int, shares ...share) *container {
	t.Helper()
	return newContainerWith(t, []string{"--context-mib", strconv.Itoa(contextMiB), "--gpu", fmt.Sprintf("H100-80GB,count=%d,switch=4,fabric=11111111-2222-3333-4444-555555555555.0", len(shares))}, shares...)
}

// newContainerOn is on a driver that takes so many MiB for each context.
func newContainerOn(t *testing.T, contextMiB int, shares ...share) *container {
	t.Helper()
	return newContainerWith(t, []string{"--context-mib", strconv.Itoa(contextMiB), "--gpu", fmt.Sprintf("A100-SXM4-80GB,count=%d", len(shares))}, shares...)
}

// newContainerWith is on devices that these arguments of simgpuctl create make.
func newContainerWith(t *testing.T, devices []string, shares ...share) *container {
	t.Helper()
	b := must.Get(build())(t)
	c := &container{t: t, dir: t.TempDir(), built: b}
	c.state = filepath.Join(c.dir, "state")
	c.ctl(append([]string{"create"}, devices...)...)
	c.allow(shares)
	return c
}

// neighbour is another container on the same devices.
func (c *container) neighbour(shares ...share) *container {
	c.t.Helper()
	n := &container{t: c.t, dir: c.t.TempDir(), state: c.state, built: c.built}
	n.allow(shares)
	return n
}

// newBareContainer is on tests/driver: one device, no state, nobody to wait for.
func newBareContainer(t *testing.T, s share) *container {
	t.Helper()
	b := must.Get(build())(t)
	c := &container{t: t, dir: t.TempDir(), built: b}
	c.sim = filepath.Join(b.dir, "bare")
	uuid := layout.FormatUUID([16]byte(bytes.Repeat([]byte{0x42}, 16)))
	c.write([]layout.DeviceLimit{{UUID: uuid, Core: uint32(s.core), MemoryBytes: uint64(s.mib) * mib}})
	return c
}

// allow writes the container's limits and counters.
func (c *container) allow(shares []share) {
	t := c.t
	t.Helper()
	var devices []layout.DeviceLimit
	for i, s := range shares {
		uuid := c.status(i, "uuid")
		if s.mib != 0 {
			devices = append(devices, layout.DeviceLimit{UUID: uuid, Core: uint32(s.core), MemoryBytes: uint64(s.mib) * mib})
		}
	}
	c.write(devices)
}

func (c *container) write(devices []layout.DeviceLimit) {
	t := c.t
	t.Helper()
	limits := layout.Limits{Container: "test/" + t.Name(), Devices: devices}
	if len(limits.Container) > layout.MaxContainerBytes {
		limits.Container = "test"
	}
	must.Do(t, layout.WriteFile(filepath.Join(c.dir, "limits"), limits))
	must.Do(t, layout.CreateCounters(filepath.Join(c.dir, "counters"), len(limits.Devices)))
}

// native is the environment of a program that runs without the library.
func (c *container) native() []string {
	return append(os.Environ(), "SIMGPU_STATE="+c.state, "SIMGPU_ALL_DEVICES=1",
		"LD_LIBRARY_PATH="+c.sim)
}

func (c *container) command(preload, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.built.dir, program), args...)
	cmd.Dir = c.dir
	cmd.Env = c.native()
	endsWithTests(cmd)
	if preload != "" {
		preload = filepath.Join(c.built.dir, preload)
		if sanitized {
			preload = os.Getenv(sanitizedVar)
		}
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+preload)
	}
	return cmd
}

// endsWithTests makes a command's process be killed when this one ends, however that ends:
// some of the programs work without end.
func endsWithTests(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// ctl runs simgpuctl and returns what it printed.
func (c *container) ctl(args ...string) string {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(c.sim, "simgpuctl"), args...)
	cmd.Env = c.native()
	if c.clock != nil {
		cmd.Env = append(cmd.Env, append(c.clock.environment(true), "LD_PRELOAD="+filepath.Join(c.built.dir, "libclock.so"))...)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("simgpuctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// status returns one value that simgpuctl prints of a device.
func (c *container) status(device int, key string) string {
	c.t.Helper()
	for line := range strings.Lines(c.ctl("status")) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "device" || fields[1] != fmt.Sprintf("index=%d", device) {
			continue
		}
		for _, field := range fields {
			if value, found := strings.CutPrefix(field, key+"="); found {
				return value
			}
		}
	}
	c.t.Fatalf("simgpuctl status says no %s of device %d:\n%s", key, device, c.ctl("status"))
	return ""
}

// usage reads the counters as the node agent does.
func (c *container) usage() layout.Usage {
	c.t.Helper()
	return must.Get(layout.ReadUsage(filepath.Join(c.dir, "counters")))(c.t)
}

// process is a running program "calls" under the library.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr *strings.Builder
}

// start starts calls and initialises CUDA with device 0's primary context as
// place 0, if that is allowed.
func (c *container) start() *process {
	c.t.Helper()
	p := c.startRaw("libvgpu-test.so")
	p.do("init", "primary 0 0", "current 0")
	return p
}

func (c *container) startRaw(preload string) *process {
	c.t.Helper()
	p := c.prepare(preload)
	p.begin()
	return p
}

// prepare is a process that isn't running yet.
func (c *container) prepare(preload string) *process {
	p := &process{t: c.t, cmd: c.command(preload, "calls"), stderr: &strings.Builder{}}
	p.cmd.Stderr = p.stderr
	return p
}

func (p *process) begin() {
	p.t.Helper()
	p.in, p.out = pipes(p.t, p.cmd)
	must.Do(p.t, p.cmd.Start())
	p.t.Cleanup(p.kill)
}

// pipes are the input and output of a command that isn't running yet.
func pipes(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	cmd.Stdin, cmd.Stdout = nil, nil
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	return in, bufio.NewScanner(out)
}

// send writes one line to the process.
func (p *process) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatalf("%q: %v", line, err)
	}
}

// echo sends one line and returns one.
func (p *process) echo(line string) string {
	p.t.Helper()
	p.send(line)
	if !p.out.Scan() {
		p.t.Fatalf("%q: no answer; stderr: %s", line, p.end())
	}
	return p.out.Text()
}

// call makes one call and returns the numbers of the answer.
func (p *process) call(line string) []int {
	p.t.Helper()
	answer := p.echo(line)
	var numbers []int
	for _, field := range strings.Fields(answer)[1:] {
		n, err := strconv.Atoi(field)
		if err != nil {
			p.t.Fatalf("%q: answer %q", line, answer)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// want makes one call and compares its code.
func (p *process) want(line string, code int) {
	p.t.Helper()
	if got := p.call(line); got[0] != code {
		p.t.Errorf("%q answered %v, want %d", line, got, code)
	}
}

// do makes calls that are all to work.
func (p *process) do(lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		p.want(line, ok)
	}
}

// wantUsed compares what cuMemGetInfo says is used and there in all, in MiB.
func (p *process) wantUsed(used, total int) {
	p.t.Helper()
	got := p.call("info")
	if got[0] != ok || got[2]-got[1] != used*mib || got[2] != total*mib {
		p.t.Errorf("cuMemGetInfo answered %d: %d of %d MiB used, want %d of %d", got[0], (got[2]-got[1])/mib, got[2]/mib, used, total)
	}
}

// end ends the process by closing its input and returns what it wrote to stderr.
func (p *process) end() string {
	p.t.Helper()
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("%v; stderr: %s", err, p.stderr)
	}
	return p.stderr.String()
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	must.Do(p.t, p.cmd.Process.Signal(s))
}

// kill kills the process as the kernel's out-of-memory killer would.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}
