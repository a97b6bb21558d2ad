// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/test/must"
)

// stateOf is the state that the kernel shows of a process: R, S, T and so on; empty where
// there is none.
func stateOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestRunEndsItsCommand: a command ends with its vgpu-run, however that ends.
func TestRunEndsItsCommand(t *testing.T) {
	t.Parallel()
	for name, user := range users(t) {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, share{0, 1})
			cmd := c.vgpuRun("--", "sh", "-c", "echo $$; exec sleep infinity")
			_, out := pipes(t, cmd)
			c.asUser(cmd, user)
			must.Do(t, cmd.Start())
			if !out.Scan() {
				t.Skip("this machine allows users no namespaces: TestRunUnescapable")
			}
			pid := must.Get(strconv.Atoi(out.Text()))(t)
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			must.Do(t, cmd.Process.Kill())
			_ = cmd.Process.Release()
			await(t, "the command's end", func() bool {
				state := stateOf(pid)
				return state == "" || state == "Z" || state == "X"
			})
		})
	}
}

// TestRunStops: a vgpu-run that is sent TSTP is stopped once its command is, and both go on
// with CONT, as a shell expects of a job.
func TestRunStops(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	cmd := c.vgpuRun("--", "sh", "-c", "echo $$; cat; exit 5")
	cmd.SysProcAttr.Setpgid = true // TSTP is ignored in a process group without a shell
	in, out := pipes(t, cmd)
	must.Do(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if !out.Scan() {
		t.Fatal("the command didn't start")
	}
	command := must.Get(strconv.Atoi(out.Text()))(t)
	must.Do(t, cmd.Process.Signal(syscall.SIGTSTP))
	for what, pid := range map[string]int{"the command": command, "vgpu-run": cmd.Process.Pid} {
		await(t, what+" is stopped", func() bool { return stateOf(pid) == "T" })
	}
	must.Do(t, cmd.Process.Signal(syscall.SIGCONT))
	_ = in.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("%v, want exit code 5", err)
	}
}

// TestRunKeepsReport: a run that comes to nothing leaves the report of the one before.
func TestRunKeepsReport(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	report := filepath.Join(c.dir, "report")
	must.Do(t, os.WriteFile(report, []byte("of before"), 0o600))
	for _, args := range [][]string{{"--device", "7", "--", "true"}, {"--", "no-such-command"}} {
		if r := c.end(c.vgpuRun(append([]string{"--report", report}, args...)...)); r.code == 0 {
			t.Errorf("%v: exit code 0", args)
		}
	}
	if kept, err := os.ReadFile(report); err != nil || string(kept) != "of before" {
		t.Errorf("%v: the report is %q", err, kept)
	}
}

// TestRunNamesCauses: an error that a setting of the shell explains names it.
func TestRunNamesCauses(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1}, share{0, 1})
	cmd := c.vgpuRun("--device", "1", "--", "true")
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=0")
	if r := c.end(cmd); r.code != 125 || !strings.Contains(r.stderr, "CUDA_VISIBLE_DEVICES=0 ") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	cmd = c.vgpuRun("--", "true")
	cmd.Env = append(cmd.Env, "SIMGPU_STATE=/nowhere")
	inner := append([]string{"sh", "-c", `ulimit -v 9000000; exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Args = "/bin/sh", inner
	if r := c.end(cmd); r.code != 125 || !strings.Contains(r.stderr, "ulimit -v is 9000000 KiB") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
}

// TestRunHidesDevices: under --device the command counts those devices alone, in NVML as
// in CUDA.
func TestRunHidesDevices(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1}, share{0, 1}, share{0, 1})
	r := c.end(c.vgpuRun("--device", "1", "--", filepath.Join(c.built.dir, "devices")))
	list := "count 0 1\n0 " + c.status(1, "uuid") + "\nrefused 2\n"
	if r.code != 0 || r.out != list+list {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.stderr)
	}
}

// TestRunWarnsOfServices: a run of which no process used CUDA says so, and whether others
// work on the device: what it had a service start, maybe.
func TestRunWarnsOfServices(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	quiet := c.end(c.vgpuRun("--", "true"))
	if strings.Contains(quiet.stderr+fmt.Sprint(quiet.report), "others_busy") {
		t.Errorf("nobody works there: %s", quiet.stderr)
	}
	other := c.command("", "load", "600", "1000", "108")
	other.Stdin = strings.NewReader("\n")
	must.Do(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	table := filepath.Join(c.dir, "table")
	await(t, "the warning", func() bool {
		cmd := c.vgpuRun("--json=false", "--report", table, "--", "true")
		if r := c.end(cmd); r.code != 0 {
			t.Fatalf("exit code %d: %s", r.code, r.stderr)
		}
		said, err := os.ReadFile(table)
		return err == nil && strings.Contains(string(said), "systemd-run")
	})
}
