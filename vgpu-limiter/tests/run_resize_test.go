// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/test/must"
)

// TestRunResize: a command that runs under vgpu-run gets more and less of the device, by
// steps of one percent and one MiB, up to the device, and no less than it uses.
func TestRunResize(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	cmd := c.vgpuRun("--core", "30", "--mem-mib", "100", "--", filepath.Join(c.built.dir, "calls"))
	p := &process{t: t, cmd: cmd, stderr: &strings.Builder{}}
	cmd.Stderr = p.stderr
	p.begin()
	p.do("init", "primary 0 0", "current 0", "alloc 1 100")
	resize := func(code int, says string, args ...string) {
		t.Helper()
		r := c.command("", "vgpu-run", append([]string{"resize", "--run-dir", filepath.Join(c.dir, "run")}, args...)...)
		said, err := r.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if r.ProcessState.ExitCode() != code || !strings.Contains(string(said), says) {
			t.Errorf("%v: exit code %d: %swant %d and %q", args, r.ProcessState.ExitCode(), said, code, says)
		}
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	paths := must.Get(filepath.Glob(filepath.Join(c.dir, "run", pid+"-*")))(t)
	if len(paths) != 1 {
		t.Fatalf("the session's folders are %v", paths)
	}
	name, uuid := filepath.Base(paths[0]), c.status(0, "uuid")
	resize(0, uuid+": core 31%, memory 100 MiB", pid, "--core", "31")
	resize(0, "core 31%, memory 101 MiB", name, "--mem-mib=101")
	p.wantUsed(100, 101)
	p.do("alloc 2 1")
	p.want("alloc 3 1", outOfMemory)
	resize(125, "101 MiB are in use", pid, "--mem-mib", "100", "--core", "1")
	p.wantUsed(101, 101)
	p.do("free 1")
	resize(0, "core 100%, memory 1 MiB", pid, "--mem-mib", "1", "--core", "100", "--device", uuid)
	p.wantUsed(1, 1)
	p.want("alloc 1 1", outOfMemory)
	unlimited := c.startRaw("") // the driver keeps some of what the device has
	unlimited.do("init", "primary 0 0", "current 0")
	device := unlimited.call("total 0")[1] / mib
	resize(0, fmt.Sprintf("core 100%%, memory %d MiB", device), pid, "--mem-mib", strconv.Itoa(device))
	resize(125, "ask for at most that", pid, "--mem-mib", strconv.Itoa(device+1))
	p.wantUsed(1, device)
	resize(125, "name one of the command's devices", pid, "--core", "3", "--device", "GPU-00000000-0000-0000-0000-000000000000")
	resize(125, "there are "+name, "no-session", "--core", "3")
	_ = p.in.Close()
	must.Report(t, cmd.Wait())
	if said := p.stderr.String(); !strings.Contains(said, fmt.Sprintf(`"core_percent":100,"memory_limit_bytes":%d,`, device*mib)) {
		t.Errorf("reported %s", said)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		said, _ := c.command("", "vgpu-run", "resize", pid, "--core", "3", "--run-dir", filepath.Join(c.dir, "run")).CombinedOutput()
		return strings.Contains(string(said), "no vgpu-run runs in"), nil
	})
	must.Report(t, err)
}
