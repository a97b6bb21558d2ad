// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/test/must"
)

// ran is what became of a vgpu-run.
type ran struct {
	code        int
	out, stderr string
	report      struct {
		ExitCode  int `json:"exit_code"`
		Processes int
		Devices   []struct {
			UUID    string
			Limit   int `json:"memory_limit_bytes"`
			Refused int `json:"memory_refusals"`
		}
	}
}

// vgpuRun is vgpu-run as it ships, on the container's simulated node: the limits
// are those of its own arguments.
func (c *container) vgpuRun(args ...string) *exec.Cmd {
	cmd := c.command("", "vgpu-run", append([]string{"--run-dir", filepath.Join(c.dir, "run"), "--json"}, args...)...)
	cmd.Stdin = strings.NewReader(heldCalls)
	return cmd
}

func (c *container) end(cmd *exec.Cmd) ran {
	c.t.Helper()
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	r := ran{code: cmd.ProcessState.ExitCode(), out: out.String(), stderr: stderr.String()}
	if i := strings.LastIndex(r.stderr, "{"); i >= 0 {
		i = strings.LastIndex(r.stderr[:i], "\n") + 1
		if err := json.Unmarshal([]byte(r.stderr[i:]), &r.report); err != nil {
			c.t.Errorf("%v in the report %q", err, r.stderr[i:])
		}
		r.stderr = r.stderr[:i]
	}
	return r
}

// heldCalls are calls, and held100 is what they answer under 100 MiB.
const heldCalls = "init\nprimary 0 0\ncurrent 0\ntotal 0\nalloc 1 101\nalloc 1 100\n"
const held100 = "init 0\nprimary 0\ncurrent 0\ntotal 0 104857600\nalloc 2\nalloc 0\n"

// TestRun: a command under vgpu-run is held to its share, in whatever way it is
// asked for, and the report says what it was and did.
func TestRun(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1}, share{0, 1})
	first, second := c.status(0, "uuid"), c.status(1, "uuid")
	calls := filepath.Join(c.built.dir, "calls")
	for name, test := range map[string]struct {
		args  []string
		uuids []string
	}{
		"all devices": {[]string{"--mem-mib", "100"}, []string{first, second}},
		"index":       {[]string{"--mem-mib", "100", "--device", "1"}, []string{second}},
		"UUID":        {[]string{"--device", first + ",mem-mib=100"}, []string{first}},
		"both":        {[]string{"--device", second + ",mem-mib=100", "--device", "0"}, []string{second, first}},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.end(c.vgpuRun(append(test.args, "--", calls)...))
			if r.code != 0 || r.out != held100 || r.stderr != "" {
				t.Errorf("exit code %d\n%s%s", r.code, r.out, r.stderr)
			}
			var uuids []string
			for _, d := range r.report.Devices {
				uuids = append(uuids, d.UUID)
			}
			if strings.Join(uuids, " ") != strings.Join(test.uuids, " ") || r.report.Processes != 1 || r.report.Devices[0].Refused != 1 || r.report.Devices[0].Limit != 100*mib {
				t.Errorf("reported %+v, want the devices %v", r.report, test.uuids)
			}
		})
	}
	if r := c.end(c.vgpuRun("--", "true")); r.report.Devices[0].Limit < 80000*mib {
		t.Errorf("without --mem-mib the limit is %d bytes", r.report.Devices[0].Limit)
	}
}

// TestRunBesideOthers: the report says how much of the device processes have used that no
// vgpu-run limits.
func TestRunBesideOthers(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	load := []string{"600", "1000", "108"}
	other := c.command("", "load", load...)
	limited := c.vgpuRun(append([]string{"--core", "30", "--", filepath.Join(c.built.dir, "load")}, load...)...)
	var report bytes.Buffer
	limited.Stderr = &report
	for _, cmd := range []*exec.Cmd{other, limited} {
		cmd.Stdin = strings.NewReader("\n")
		must.Do(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
	}
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		// Zeros until NVML has seen the other.
		found, err := filepath.Glob(filepath.Join(c.dir, "run", "*", "others"))
		for _, path := range found {
			said, _ := os.ReadFile(path)
			var worked map[string]int
			if json.Unmarshal(said, &worked) == nil && worked[c.status(0, "uuid")] > 0 {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		t.Fatalf("nothing is said of the other: %v", err)
	}
	_ = limited.Process.Signal(syscall.SIGTERM)
	_ = limited.Wait()
	var r struct {
		Wall    int `json:"wall_ns"`
		Devices []struct {
			Others int `json:"others_ns"`
		}
	}
	if err := json.Unmarshal(report.Bytes(), &r); err != nil || r.Devices[0].Others == 0 || r.Devices[0].Others > r.Wall {
		t.Errorf("%v: %s", err, report.Bytes())
	}
}

// TestRunUnescapable: nothing that a command does to its environment or to the
// files changes what it may use, as root and as anybody else.
func TestRunUnescapable(t *testing.T) {
	t.Parallel()
	const script = `
try() { printf 'init\nprimary 0 0\ncurrent 0\ntotal 0\nalloc 1 101\nalloc 1 100\n' | "$@" "$CALLS"; }
try env
try env -i SIMGPU_STATE="$SIMGPU_STATE" SIMGPU_ALL_DEVICES=1 LD_LIBRARY_PATH="$LD_LIBRARY_PATH"
try env LD_PRELOAD= VERNIER_DISABLE=1
! rm -f /usr/local/vernier/limits /usr/local/vernier/counters /usr/local/vernier/libvgpu.so /etc/ld.so.preload 2>/dev/null
! sh -c 'echo >/usr/local/vernier/limits' 2>/dev/null
! sh -c 'echo >/etc/ld.so.preload' 2>/dev/null
try env
`
	for name, user := range users(t) {
		t.Run(name, func(t *testing.T) {
			asked := exec.Command("unshare", "--user", "--mount", "true")
			asked.SysProcAttr = &syscall.SysProcAttr{Credential: user}
			if said, err := asked.CombinedOutput(); user != nil && err != nil {
				t.Skipf("this machine allows users no namespaces, and vgpu-run says so: %s", said)
			}
			c := newContainer(t, share{0, 1})
			cmd := c.vgpuRun("--mem-mib", "100", "--", "sh", "-euc", script)
			cmd.Env = append(cmd.Env, "CALLS="+filepath.Join(c.built.dir, "calls"))
			c.asUser(cmd, user)
			if r := c.end(cmd); r.code != 0 || r.out != strings.Repeat(held100, 4) || r.stderr != "" {
				t.Errorf("exit code %d\n%s%s", r.code, r.out, r.stderr)
			}
		})
	}
}

// TestRunSessions: a session that is opened in a running container, with an
// environment of its own and as another user, as kubectl exec and sshd do it, is
// held to the same share as all the others.
func TestRunSessions(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := newContainer(t, share{0, 1})
	run(t, "chmod", "a+rwx", filepath.Dir(c.dir), c.dir)
	run(t, "chmod", "a+rw", c.state)
	cmd := c.vgpuRun("--mem-mib", "100", "--", "sh", "-c", "echo $$; exec cat")
	in, out := pipes(t, cmd)
	must.Do(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if !out.Scan() {
		t.Fatal("the container didn't start")
	}
	session := func(script string) string {
		s := exec.Command("nsenter", "--mount", "--target", out.Text(), "setpriv", "--reuid=12345", "--regid=54321", "--clear-groups",
			"env", "-i", "SIMGPU_STATE="+c.state, "SIMGPU_ALL_DEVICES=1", "LD_LIBRARY_PATH="+c.sim, filepath.Join(c.built.dir, "calls"))
		s.Stdin = strings.NewReader(script)
		said, err := s.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, said)
		}
		return string(said)
	}
	const begin = "init\nprimary 0 0\ncurrent 0\ntotal 0\nalloc 1 101\nalloc 1 100\n"
	if got := session(begin); got != held100 {
		t.Errorf("the session says\n%s", got)
	}
	_ = in.Close()
	must.Report(t, cmd.Wait())
}

// TestRunIsTransparent: input, output, descriptors, the exit code and signals are
// the command's own, and nothing of vgpu-run is left behind.
func TestRunIsTransparent(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	for script, want := range map[string]struct {
		code int
		out  string
	}{
		"cat; echo >&3 three; exit 7": {7, "three\n"},
		"kill -9 $$":                  {137, ""},
		"kill -TERM $PPID; while :; do read x </dev/null; done":                                    {143, ""},
		"trap 'echo caught; exit 3' USR1; kill -USR1 $PPID; while :; do read x </dev/null; done":   {3, "caught\n"},
		"trap 'echo caught; exit 3' CONT; kill -CONT $PPID; while :; do read x </dev/null; done":   {3, "caught\n"},
		"trap 'echo caught; exit 3' WINCH; kill -WINCH $PPID; while :; do read x </dev/null; done": {3, "caught\n"},
		"trap 'echo caught; exit 3' ALRM; kill -ALRM $PPID; while :; do read x </dev/null; done":   {3, "caught\n"},
		"trap 'echo caught; exit 3' PIPE; kill -PIPE $PPID; while :; do read x </dev/null; done":   {3, "caught\n"},
		"trap 'echo caught; exit 3' TSTP; kill -TSTP $PPID; while :; do read x </dev/null; done":   {3, "caught\n"},
	} {
		t.Run(script, func(t *testing.T) {
			cmd := c.vgpuRun("--", "sh", "-c", script)
			three := must.Get(os.Create(filepath.Join(c.dir, "three")))(t)
			cmd.Stdin, cmd.ExtraFiles = nil, []*os.File{three}
			r := c.end(cmd)
			content, _ := os.ReadFile(three.Name())
			if r.code != want.code || r.out+string(content) != want.out || r.stderr != "" || r.report.ExitCode != want.code {
				t.Errorf("exit code %d, reported %d\n%s%s%s", r.code, r.report.ExitCode, r.out, content, r.stderr)
			}
		})
	}
	left, err := os.ReadDir(filepath.Join(c.dir, "run"))
	if err != nil || len(left) != 1 || left[0].Name() != "lead" {
		t.Errorf("left behind: %v, %v; want the lock of the one that leads only", left, err)
	}
	// Stderr is a pipe that nobody reads.
	read, write, err := os.Pipe()
	must.Do(t, err)
	_ = read.Close()
	unread := c.vgpuRun("--", "sh", "-c", "exit 7")
	unread.Stderr = write
	if err := unread.Run(); unread.ProcessState.ExitCode() != 7 {
		t.Errorf("with stderr closed: %v", err)
	}
	_ = write.Close()
	cmd := c.vgpuRun("--report", filepath.Join(c.dir, "report"), "--", "true")
	if r := c.end(cmd); r.code != 0 || r.stderr != "" {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
	if report, err := os.ReadFile(filepath.Join(c.dir, "report")); err != nil || !json.Valid(report) {
		t.Errorf("the report is %q, %v", report, err)
	}
}

// TestRunRefuses: what can't be done is said, with the way out.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	for name, test := range map[string]struct {
		args []string
		env  string
		code int
		says string
	}{
		"no such command":    {[]string{"--", "no-such-command"}, "", 127, "not found"},
		"no program":         {[]string{"--", "/etc/passwd"}, "", 126, "permission denied"},
		"no such device":     {[]string{"--device", "7", "--", "true"}, "", 125, "0  " + c.status(0, "uuid")},
		"more than there is": {[]string{"--mem-mib", "99999999", "--", "true"}, "", 125, "leave --mem-mib out"},
		"no library":         {[]string{"--library", "/nowhere", "--", "true"}, "", 125, "make limiter"},
		"no driver":          {[]string{"--", "true"}, "LD_LIBRARY_PATH=/nowhere", 125, "libcuda.so.1"},
		"no devices":         {[]string{"--", "true"}, "SIMGPU_STATE=/nowhere", 125, "nvidia-smi"},
		"nested":             {[]string{"--", filepath.Join(c.built.dir, "vgpu-run"), "true"}, "", 125, "a share of a share"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := c.vgpuRun(test.args...)
			cmd.Env = append(cmd.Env, test.env)
			if r := c.end(cmd); r.code != test.code || r.out != "" || !strings.Contains(r.stderr, test.says) {
				t.Errorf("exit code %d: %s%s", r.code, r.out, r.stderr)
			}
		})
	}
}

// TestRunWithoutNVML: libcuda.so.1 is all of a driver that is needed, and where
// nothing is left to ask, not even that.
func TestRunWithoutNVML(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	uuid := c.status(0, "uuid")
	only := filepath.Join(c.dir, "only")
	must.Do(t, errors.Join(os.Mkdir(only, 0o755), os.Symlink(filepath.Join(c.sim, "libcuda.so.1"), filepath.Join(only, "libcuda.so.1"))))
	for _, device := range []string{"0", uuid} {
		cmd := c.vgpuRun("--device", device, "--mem-mib", "100", "--", filepath.Join(c.built.dir, "calls"))
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+only)
		if r := c.end(cmd); r.code != 0 || r.out != held100 {
			t.Errorf("--device %s: exit code %d\n%s%s", device, r.code, r.out, r.stderr)
		}
	}
	cmd := c.vgpuRun("--device", uuid, "--mem-mib", "100", "--", "echo", "hello")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH=/nowhere")
	if r := c.end(cmd); r.code != 0 || r.out != "hello\n" {
		t.Errorf("without a driver: exit code %d\n%s%s", r.code, r.out, r.stderr)
	}
}

// TestRunKeepsPreloads: the machine's own preloaded libraries stay, behind ours.
func TestRunKeepsPreloads(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := newContainer(t, share{0, 1})
	other := filepath.Join(c.dir, "other.so")
	source := `#include <unistd.h>
__attribute__((constructor)) static void hello(void) { if (write(1, "other\n", 6) < 0) _exit(1); }`
	must.Do(t, os.WriteFile(other+".c", []byte(source), 0o600))
	run(t, compiler(), "-shared", "-fPIC", "-o", other, other+".c")
	// A machine with that preload file, in a mount namespace. Of /etc only what loaders read:
	// others may change the rest while it is copied.
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-euc",
		`mkdir etc; cp -a /etc/ld.so.c* etc; mount --bind etc /etc; echo ` + other + ` >/etc/ld.so.preload; exec "$@"`, "sh"},
		c.vgpuRun("--", "cat", "/etc/ld.so.preload").Args...)...)
	cmd.Dir, cmd.Env = c.dir, c.native()
	cmd.Args[6] = filepath.Join(c.built.dir, "vgpu-run")
	r := c.end(cmd)
	if want := "other\n/usr/local/vernier/libvgpu.so\n" + other + "\n"; r.code != 0 || !strings.HasSuffix(r.out, want) {
		t.Errorf("exit code %d\n%s%swant it to end in\n%s", r.code, r.out, r.stderr, want)
	}
}

// TestRunOnFullDisk: counters that the disk has no room for are refused before the
// command starts; the command would die of a bus error later.
func TestRunOnFullDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := newContainer(t, share{0, 1})
	inner := c.vgpuRun("--mem-mib", "100", "--", filepath.Join(c.built.dir, "calls"))
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-euc",
		`mkdir run; mount -t tmpfs -o size=100k,mode=0700 none run; exec "$@"`, "sh", inner.Path}, inner.Args[1:]...)...)
	cmd.Dir, cmd.Env, cmd.Stdin = c.dir, c.native(), inner.Stdin
	if r := c.end(cmd); r.code != 125 || !strings.Contains(r.stderr, "no space left") || !strings.Contains(r.stderr, "--run-dir") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.stderr)
	}
}
