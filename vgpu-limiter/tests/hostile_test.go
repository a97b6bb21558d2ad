// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// Where things are in the counters: vgpu_layout.h.
const (
	deviceWordsAt    = 64
	deviceWordsBytes = 128
	paidUntilAt      = deviceWordsAt + 64
	workingUntilAt   = deviceWordsAt + 112
	calendarAt       = 626688
)

// counters are the content of the container's counters.
func (c *container) counters() []byte {
	c.t.Helper()
	return must.Get(os.ReadFile(filepath.Join(c.dir, "counters")))(c.t)
}

// overwrite writes into the counters as they are, from a byte on.
func (c *container) overwrite(at int64, b []byte) {
	c.t.Helper()
	f, err := os.OpenFile(filepath.Join(c.dir, "counters"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(b, at)
		_ = f.Close()
	}
	must.Do(c.t, err)
}

// wantDamaged: new processes get no CUDA, and whoever reads the counters is told.
func (c *container) wantDamaged() {
	c.t.Helper()
	if u, err := layout.ReadUsage(filepath.Join(c.dir, "counters")); err == nil {
		c.t.Errorf("the counters read %+v", u)
	}
	c.startRaw("libvgpu-test.so").want("init", notPermitted)
}

// TestHostileEarlierCounters: a process that has charged, or launched, since a copy of the
// counters was made gets neither memory nor launches once that is written back, and no other
// process gets CUDA.
func TestHostileEarlierCounters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after, then string
		refused             int
	}{
		"memory":   {"free 0", "alloc 1 400", "alloc 2 1", outOfMemory},
		"freed":    {"alloc 1 400", "free 1", "alloc 2 1", outOfMemory},
		"launches": {"launch 0 10 20", "launch 0 10 1000", "launch 0 10 1000", notPermitted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{50, 500})
			p := c.start()
			p.call(test.before)
			copied := c.counters()
			p.want(test.after, ok)
			held := c.held(0)
			c.overwrite(0, copied)
			p.want(test.then, test.refused)
			p.want("alloc 3 400", outOfMemory)
			if now := c.held(0); now != held {
				t.Errorf("the device holds %d MiB, want %d", now, held)
			}
			c.wantDamaged()
			c.overwrite(0, copied) // that the process knows it once is enough
			p.want("alloc 3 1", outOfMemory)
		})
	}
}

// TestHostileEarlierCountersOfOthers: where another process has charged since the copy was
// made, the node side's last reading tells.
func TestHostileEarlierCountersOfOthers(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 500})
	must.Do(t, layout.CreatePace(filepath.Join(c.dir, "pace"), 1))
	loop := pace.New()
	attached := must.Get(loop.Attach(filepath.Join(c.dir, "limits"), filepath.Join(c.dir, "counters"), filepath.Join(c.dir, "pace")))(t)
	t.Cleanup(attached.Detach)
	p, q := c.start(), c.start()
	copied := c.counters()
	p.want("alloc 1 400", ok)
	loop.Step()
	c.overwrite(0, copied)
	loop.Step()
	loop.Step()
	q.want("alloc 1 400", outOfMemory)
	c.wantHeld(400)
	c.wantDamaged()
	c.overwrite(0, copied)
	q.want("alloc 1 1", outOfMemory)
	r := c.startRaw("libvgpu-test.so")
	r.want("init", notPermitted)
	if said := r.end(); !strings.Contains(said, "overwritten") {
		t.Errorf("said %q", said)
	}
}

// TestHostileGarbage: whatever is in the counters, every launch and allocation comes back
// with an answer, and no more memory is had than the limit.
func TestHostileGarbage(t *testing.T) {
	t.Parallel()
	random := make([]byte, layout.CountersBytes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	ones := bytes.Repeat([]byte{0xff}, layout.CountersBytes)
	far := binary.LittleEndian.AppendUint64(nil, 1<<62)
	for name, garbage := range map[string]struct {
		at int64
		b  []byte
	}{
		"ones":            {0, ones},
		"zeros":           {0, make([]byte, layout.CountersBytes)},
		"random":          {0, random},
		"devices":         {deviceWordsAt, ones[:deviceWordsBytes]},
		"random device":   {deviceWordsAt, random[:deviceWordsBytes]},
		"debt":            {paidUntilAt, far},
		"work":            {workingUntilAt, far},
		"calendar":        {calendarAt, ones[calendarAt:]},
		"random calendar": {calendarAt, random[calendarAt:]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{50, 100})
			p := c.start()
			p.do("stream 1", "launch 1 10 100")
			c.overwrite(garbage.at, garbage.b)
			for range 5 { // one that hangs ends with the tests' own time
				for _, call := range []string{"alloc 1 60", "launch 1 10 100", "info", "free 1", "launch 0 10 1"} {
					p.call(call)
				}
			}
			p.call("alloc 1 60")
			p.call("alloc 2 60")
			if held := c.held(0); held > 100 {
				t.Errorf("the device holds %d MiB of 100", held)
			}
		})
	}
}

// TestHostileUring: what is done by io_uring in place of system calls is seen as what they
// do: an earlier copy that is written back, the library's descriptors closed, and a
// descriptor that keeps memory in no process' table.
func TestHostileUring(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*container, *process, *process) {
		t.Helper()
		c := newContainer(t, share{0, 100})
		p, q := c.start(), c.start()
		if p.call("uring")[0] == 1000 {
			t.Skip("this machine has no io_uring")
		}
		return c, p, q
	}
	t.Run("written back", func(t *testing.T) {
		t.Parallel()
		c, p, _ := begin(t)
		must.Do(t, os.WriteFile(filepath.Join(c.dir, "copy"), c.counters(), 0o600))
		p.do("alloc 1 60", "uring_write_back")
		p.want("alloc 2 60", outOfMemory)
		c.wantDamaged()
	})
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		_, p, q := begin(t)
		p.do("alloc 1 60", "uring_close_descriptors")
		q.want("alloc 1 60", outOfMemory)
		p.want("alloc 2 41", outOfMemory)
		p.want("alloc 2 40", ok)
	})
	t.Run("kept", func(t *testing.T) {
		t.Parallel()
		c, p, q := begin(t)
		p.do("create 1 60 0", "export 1 1", "uring_hold 1", "release 1")
		q.want("alloc 1 60", outOfMemory)
		c.wantHeld(60)
		p.want("uring_drop", ok)
		for q.call("alloc 1 100")[0] != ok { // the kernel closes it when it comes to that
		}
	})
}

// TestHostileSymbolsByHand shows what a program gets that reads the driver's ELF tables
// itself: it passes by the limit. By the driver's own list it is there, and unless it has
// called the library as well it has no slot, so the node agent reports it
// (UnenforcedProcess); and others in its container keep to theirs.
func TestHostileSymbolsByHand(t *testing.T) {
	t.Parallel()
	for linked, slots := range map[string]int{"0": 0, "1": 1} {
		c := newContainer(t, share{0, 100})
		cmd := c.command("libvgpu-test.so", "byhand", linked, "150")
		in, out := pipes(t, cmd)
		must.Do(t, cmd.Start())
		if !out.Scan() || out.Text() != "byhand 0" {
			t.Errorf("said %q; this shows what is known to pass", out.Text())
		}
		if u := c.usage(); len(u.Processes) != slots || u.Devices[0].UsedBytes != 0 || c.held(0) != 150 {
			t.Errorf("the device holds %d MiB, the counters say %+v", c.held(0), u)
		}
		p := c.start()
		p.want("alloc 1 101", outOfMemory)
		p.want("alloc 1 100", ok)
		_ = in.Close()
		must.Report(t, cmd.Wait())
	}
}

// TestHostileUserNamespace shows what a program gets that hides the list of preloaded
// libraries behind a mount in a user namespace of its own: it passes by the limit, and has no
// slot. Where the container's seccomp profile refuses the namespace, it doesn't.
func TestHostileUserNamespace(t *testing.T) {
	t.Parallel()
	const escape = `
escape() { printf 'init\nprimary 0 0\ncurrent 0\nalloc 1 101\n' |
	"$@" /usr/bin/unshare --user --map-root-user --mount sh -euc 'mount --bind /dev/null /etc/ld.so.preload; exec "$CALLS"'; }
escape setpriv --no-new-privs
! escape $DENIED -- 2>/dev/null
`
	for name, user := range users(t) {
		t.Run(name, func(t *testing.T) {
			asked := exec.Command("setpriv", "--no-new-privs", "unshare", "--user", "--map-root-user", "--mount", "true")
			asked.SysProcAttr = &syscall.SysProcAttr{Credential: user}
			if said, err := asked.CombinedOutput(); err != nil {
				t.Skipf("this machine allows users no namespaces: %s", said)
			}
			c := newContainer(t, share{0, 1})
			cmd := c.vgpuRun("--mem-mib", "100", "--", "sh", "-euc", escape)
			cmd.Env = append(cmd.Env, "CALLS="+filepath.Join(c.built.dir, "calls"),
				fmt.Sprintf("DENIED=%s %d %d %d", filepath.Join(c.built.dir, "denied"), unix.EPERM, unix.SYS_UNSHARE, unix.SYS_MOUNT))
			c.asUser(cmd, user)
			r := c.end(cmd)
			if r.code != 0 || r.out != "init 0\nprimary 0\ncurrent 0\nalloc 0\n" || r.report.Processes != 0 {
				t.Errorf("exit code %d, %d processes; this shows what is known to pass\n%s%s", r.code, r.report.Processes, r.out, r.stderr)
			}
		})
	}
}
