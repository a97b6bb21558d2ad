// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// spaces3 are the namespaces that the node's daemon has.
func (n *node) spaces3() map[string][]string {
	n.t.Helper()
	return must.Get(v3{link{n.program, n.files.folder(n.uuid()), long}}.have())(n.t)
}

// hold runs a client that has a context until its end.
func (n *node) hold(c mode.Container) (failed func() string, end func()) {
	n.t.Helper()
	cmd := n.command(c, nil, "unit/mps", "until_failed")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.Do(n.t, err)
	lines := bufio.NewScanner(out)
	await := func(says string) string {
		n.t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), says) {
				return lines.Text()
			}
		}
		n.t.Fatalf("the client ended before it said %q", says)
		return ""
	}
	await("hold")
	end = func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	n.t.Cleanup(end)
	return func() string { return await("failed") }, end
}

// In protocol 3 each slice has its own limits, whatever its environment says and
// however large its neighbours are, and it cannot command the daemon.
func TestNamespaces(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	small, large := n.grant("a", 30, 1000), n.grant("b", 50, 2048)
	for _, run := range []struct {
		c        mode.Container
		without  []string
		mib, sms string
	}{
		{small, nil, "allocated mib=1000", "sms=32"},
		{large, nil, "allocated mib=2048", "sms=54"},
		{small, []string{envPipe}, "DEVICE_UNAVAILABLE", ""},
	} {
		if said := n.run(run.c, run.without...); !strings.Contains(said, run.mib) {
			t.Errorf("pod %s without %v says %q, want %q", run.c.Owner, run.without, said, run.mib)
		}
		for _, percent := range []string{"", "100", "0"} {
			cmd := n.command(run.c, run.without, "unit/mps", "sms")
			cmd.Env = append(cmd.Env, envThreads+"="+percent)
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), run.sms) {
				t.Errorf("pod %s with %s=%s says %q, want %q", run.c.Owner, envThreads, percent, out, run.sms)
			}
		}
	}
	all, err := n.Apply(small, n.first(small))
	if err != nil || all[0].Compute != v1alpha1.GuaranteeCooperative || !strings.Contains(all[0].Note, "runAsUser") {
		t.Errorf("%+v, %v; want what root may do", all, err)
	}
	// It sees its own namespace's folder and no other.
	adjust := &api.ContainerAdjustment{}
	must.Do(t, n.Inject(small, adjust))
	if names, err := os.ReadDir(adjust.GetMounts()[0].GetSource()); err != nil || len(names) != 1 || names[0].Name() != "control" {
		t.Errorf("the container sees %v, %v", names, err)
	}
	if env := adjust.GetEnv(); len(env) != 1 || env[0].GetKey() != envPipe {
		t.Errorf("environment %v", env)
	}
}

// Slices come and go beside clients, and leave nothing; a namespace whose client
// outlives its slice goes when the client has.
func TestNamespacesComeAndGo(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	stays, goes := n.grant("a", 30, 1000), n.grant("b", 50, 2048)
	before := n.processes()
	n.hold(stays)
	_, end := n.hold(goes)
	must.Do(t, n.leave("b"))
	third := n.grant("c", 10, 512)
	n.allocates(third, 512)
	if have := n.spaces3(); len(have) != 3 || have[spaceOf(goes.Key())] == nil {
		t.Errorf("namespaces %v: one with a client was removed", have)
	}
	end()
	must.Do(t, n.Look(time.Now()))
	if have := n.spaces3(); len(have) != 2 || have[spaceOf(goes.Key())] != nil {
		t.Errorf("namespaces %v, want two", have)
	}
	if _, err := os.Stat(n.files.clients(n.uuid(), spaceOf(goes.Key()))); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
	n.restart(n.files.dir, n.program)
	must.Do(t, n.Settle())
	if after := n.processes(); !slices.Equal(before, after) {
		t.Errorf("processes %+v, want %+v", after, before)
	}
	n.allocates(stays, 1000)
}

// Limits that root has changed are set again, before anything is started on them.
func TestStrayNamespace(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	c := n.grant("a", 30, 1000)
	first := n.first(c)
	must.Get(n.program.Run(n.files.folder(n.uuid()), long, "namespace", "set", spaceOf(c.Key()), "--server="+ourServer, "--pinned-memory-limit=40G"))(t)
	if _, err := n.Apply(c, first); err == nil || !strings.Contains(err.Error(), "want 1000M") {
		t.Errorf("%v", err)
	}
	must.Do(t, n.Look(time.Now()))
	if _, err := n.Apply(c, first); err != nil {
		t.Error(err)
	}
}

// A server or a daemon that root has ended is there again with every namespace, and the
// pods are told.
func TestRootEndsTheServer(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	c := n.grant("a", 30, 1000)
	n.containers = []mode.Container{c}
	for _, command := range [][]string{{"server", "delete", ourServer, "--force"}, {"quit"}} {
		n.warnings = nil
		must.Get(n.program.Run(n.files.folder(n.uuid()), long, command...))(t)
		n.await(func() error {
			if err := errors.Join(n.Look(time.Now()), n.Settle()); err != nil || len(n.warnings) > 0 {
				return err
			}
			return fmt.Errorf("after %q nobody was told", command)
		})
		if !slices.Equal(n.warnings, []string{"team/a " + ReasonLost}) {
			t.Errorf("%q: warned %q", command, n.warnings)
		}
		n.allocates(c, 1000)
	}
}

// lingers is an agent's programs with a server that does not end before another one has
// been refused its name.
type lingers struct {
	*Program
	server  int
	refused int
}

func (l *lingers) Run(dir string, wait time.Duration, args ...string) (string, error) {
	if l.server != 0 && args[0] == "server" && args[1] == "delete" {
		_ = unix.Kill(l.server, unix.SIGSTOP)
	}
	said, err := l.Program.Run(dir, wait, args...)
	if l.server != 0 && args[0] == "server" && args[1] == "create" && err != nil {
		l.refused++
		_ = unix.Kill(l.server, unix.SIGCONT)
	}
	return said, err
}

// A fault ends the server alone, and the next has every namespace with its limits.
func TestNamespacesAfterAFault(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	c := n.grant("a", 30, 1000)
	n.containers = []mode.Container{c}
	before := n.processes()
	at := slices.IndexFunc(before, func(p Process) bool { return p.Server })
	if at < 0 {
		t.Fatalf("no server among %+v", before)
	}
	old := &lingers{Program: n.program}
	n.restart(n.files.dir, old)
	n.patience, n.haste = long, long
	must.Do(t, n.Settle())
	old.server = before[at].PID
	failed, _ := n.hold(c)
	n.plant("fault")
	failed()
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(drain)} {
		must.Do(t, n.Look(at))
	}
	if !slices.Equal(n.warnings, []string{"team/a " + ReasonFault}) || old.refused == 0 {
		t.Errorf("warned %q; the name was refused %d times", n.warnings, old.refused)
	}
	after := n.processes()
	if len(after) != 2 {
		t.Fatalf("processes %+v", after)
	}
	for _, p := range after {
		if slices.Contains(before, p) == p.Server {
			t.Errorf("processes %+v, want the daemon of %+v and another server", after, before)
		}
	}
	n.allocates(c, 1000)
}

// dies is an agent's programs until it dies before or after its nth command.
type dies struct {
	*Program
	left  int
	after bool
}

var errDead = errors.New("the agent is dead")

func (d *dies) Run(dir string, wait time.Duration, args ...string) (string, error) {
	d.left--
	if d.left < 0 || d.left == 0 && !d.after {
		return "", errDead
	}
	said, err := d.Program.Run(dir, wait, args...)
	if d.left == 0 {
		return "", errDead
	}
	return said, err
}

// Invariant 6: whatever command an agent dies at, the next one has the slices that
// there are then held, and leaves none that is nobody's.
func TestNamespacesAfterACrash(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.DriverNewest)
	n.patience = briefly
	for step := 1; ; step++ {
		n.ledger.Spec.Devices = nil
		gone := n.enter("gone", 20, 500)
		dead := &dies{Program: n.program, left: step, after: step%2 == 0}
		n.restart(n.files.dir, dead)
		err := n.Prepare(gone)
		n.ledger.Spec.Devices = nil
		stays := n.enter("stays", 30, 1000)
		err = errors.Join(err, n.Settle())
		n.restart(n.files.dir, n.program)
		if bad := n.Settle(); bad != nil {
			t.Fatalf("step %d: %v", step, bad)
		}
		have := n.spaces3()
		if row := have[spaceOf(stays.Key())]; len(have) != 1 || !limitsOf(stays.Grants[0]).isHeld(row) {
			t.Errorf("step %d: namespaces %v", step, have)
		}
		folders, bad := os.ReadDir(n.files.clients(n.uuid(), ""))
		if bad != nil || len(folders) != 1 {
			t.Errorf("step %d: folders %v, %v", step, folders, bad)
		}
		if step%4 == 0 {
			// With the last slice all of it goes.
			n.ledger.Spec.Devices = nil
			must.Do(t, n.Settle())
			if left, bad := filepath.Glob(filepath.Join(n.files.dir, "GPU-*")); len(left) > 0 || bad != nil {
				t.Errorf("step %d: %v is left", step, left)
			}
		}
		if err == nil {
			return // it did not die any more
		}
	}
}
