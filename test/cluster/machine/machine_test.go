// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

// sleeper starts a process that ends only by a signal, after setup has run.
func sleeper(t *testing.T, setup string) (Process, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", setup+"; echo ready; while :; do sleep 1; done")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	p := must.Get(Lookup(cmd.Process.Pid))(t)
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line := make([]byte, len("ready\n"))
	must.Get(out.Read(line))(t)
	go cmd.Wait()
	return p, cmd
}

func TestStop(t *testing.T) {
	for name, setup := range map[string]string{"willing": ":", "deaf": "trap '' TERM"} {
		t.Run(name, func(t *testing.T) {
			p, _ := sleeper(t, setup)
			if !p.Running() {
				t.Fatal("it does not run")
			}
			must.Do(t, p.Stop(t.Context(), 100*time.Millisecond))
			if p.Running() {
				t.Error("it still runs")
			}
			if err := p.Stop(t.Context(), time.Minute); err != nil {
				t.Errorf("stopping what has ended: %v", err)
			}
		})
	}
}

// TestOnlyTheProcessItself: the number of a process that has ended may be
// another's by now, which must not be touched, nor waited for.
func TestOnlyTheProcessItself(t *testing.T) {
	p, _ := sleeper(t, ":")
	earlier := Process{PID: p.PID, Start: p.Start - 1}
	if earlier.Running() {
		t.Error("another process of the same number is taken for it")
	}
	must.Report(t, earlier.Signal(syscall.SIGKILL))
	must.Report(t, earlier.Wait(t.Context()))
	if !p.Running() {
		t.Error("another process of the same number was killed")
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	p, _ := sleeper(t, ":")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestZombieHasEnded(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read line")
	in := must.Get(cmd.StdinPipe())(t)
	must.Do(t, cmd.Start())
	p := must.Get(Lookup(cmd.Process.Pid))(t)
	in.Close()
	must.Do(t, p.Wait(t.Context())) // it is not collected yet
	if p.Running() {
		t.Error("a zombie runs")
	}
	if _, err := Lookup(p.PID); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Lookup of a zombie: %v", err)
	}
	_ = cmd.Wait()
}

func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	first, _, err := TryLock(file)
	if err != nil || first == nil {
		t.Fatalf("a free lock: %v", err)
	}
	second, holder, err := TryLock(file)
	if err != nil || second != nil {
		t.Fatalf("a taken lock: %v, %v", second, err)
	}
	if !strings.Contains(holder, filepath.Base(os.Args[0])) {
		t.Errorf("holder %q does not name this program", holder)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var progress bytes.Buffer
	if _, err := WaitLock(ctx, file, &progress); !errors.Is(err, context.Canceled) || !strings.Contains(progress.String(), holder) {
		t.Errorf("waiting: %v, progress %q", err, progress.String())
	}
	first.Unlock()
	if third, err := WaitLock(t.Context(), file, &progress); err != nil {
		t.Error(err)
	} else {
		third.Unlock()
	}
}

func TestGroups(t *testing.T) {
	unified, v1 := t.TempDir(), t.TempDir()
	h := Hierarchies{Unified: unified, V1: []string{v1}}
	for name, value := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		must.Do(t, os.WriteFile(filepath.Join(v1, name), []byte(value), 0o644))
	}
	for _, name := range []string{"vernier-a", "vernier-b"} {
		// The kernel makes these files; here the test does.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			dir := filepath.Join(v1, name)
			must.Do(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, file), nil, 0o644)))
		}
		must.Do(t, h.Create(name))
	}
	if got, err := os.ReadFile(filepath.Join(v1, "vernier-a", "cpuset.cpus")); string(got) != "0-1\n" {
		t.Errorf("cpuset.cpus of the new group: %q, %v", got, err)
	}
	if !h.Has("cpuset") || h.Has("memory") {
		t.Error("Has does not tell what is there")
	}
	if got := strings.Join(h.Leftovers("vernier-"), " "); got != "vernier-a vernier-b" {
		t.Errorf("leftovers %q", got)
	}
	below := filepath.Join(unified, "vernier-a", "pod", "container")
	must.Do(t, os.MkdirAll(below, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte("12\n7\n"), 0o644))
	must.Do(t, os.WriteFile(filepath.Join(v1, "vernier-a", "cgroup.procs"), []byte("7\n0\n"), 0o644))
	// 0 stands for a process of another namespace, and would be "this process".
	if got := h.Processes("vernier-a"); len(got) != 2 || got[0] != 7 || got[1] != 12 {
		t.Errorf("processes %v", got)
	}
}

// TestEnable: what was handed down before is not ours to take back.
func TestEnable(t *testing.T) {
	h := Hierarchies{Unified: t.TempDir()}
	for file, text := range map[string]string{"cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control": "cpu pids\n"} {
		must.Do(t, os.WriteFile(filepath.Join(h.Unified, file), []byte(text), 0o644))
	}
	added, err := h.Enable()
	if err != nil || len(added) != 1 || added[0] != "memory" {
		t.Errorf("Enable handed down %v, %v", added, err)
	}
	asked := func() string {
		data, _ := os.ReadFile(filepath.Join(h.Unified, "cgroup.subtree_control"))
		return string(data)
	}
	if got := asked(); got != "+memory" {
		t.Errorf("asked the kernel for %q", got)
	}
	h.Disable(added)
	if got := asked(); got != "-memory" {
		t.Errorf("asked the kernel for %q", got)
	}
}
