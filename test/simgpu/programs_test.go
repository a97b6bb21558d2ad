// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vernier.dev/vernier/test/must"
)

// program is a running program that says when it holds.
type program struct {
	cmd   *exec.Cmd
	out   *bufio.Scanner
	lines []string
}

// holding starts cudademo with args and --hold, in a cgroup when dir is not
// empty, and returns when it has done the rest.
func holding(t *testing.T, s *Sim, dir string, args ...string) *program {
	t.Helper()
	if dir == "" {
		return start(t, s, nil, args...)
	}
	f := must.Get(os.Open(dir))(t)
	defer f.Close()
	return start(t, s, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}, args...)
}

func start(t *testing.T, s *Sim, attr *syscall.SysProcAttr, args ...string) *program {
	t.Helper()
	p := launch(t, s, attr, "cudademo", append(args, "--hold")...)
	if !p.await() {
		t.Fatalf("cudademo ended early: %q", p.lines)
	}
	return p
}

// launch starts a program without waiting for anything.
func launch(t *testing.T, s *Sim, attr *syscall.SysProcAttr, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(s.Program(name), args...)}
	p.cmd.Env = s.Env()
	p.cmd.SysProcAttr = attr
	out := must.Get(p.cmd.StdoutPipe())(t)
	p.out = bufio.NewScanner(out)
	must.Do(t, p.cmd.Start())
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

// await reads lines until the program holds; false when it ended before.
func (p *program) await() bool {
	for p.out.Scan() {
		p.lines = append(p.lines, p.out.Text())
		if strings.HasPrefix(p.out.Text(), "hold ") {
			return true
		}
	}
	return false
}

// number returns the number that follows key in the program's lines, cut to a whole one.
func (p *program) number(t *testing.T, key string) uint64 {
	t.Helper()
	for _, l := range p.lines {
		if _, rest, found := strings.Cut(l, key); found {
			digits, _, _ := strings.Cut(rest, " ")
			digits, _, _ = strings.Cut(digits, ".")
			n, err := strconv.ParseUint(digits, 10, 64)
			if err != nil {
				t.Fatalf("%s in %q: %v", key, l, err)
			}
			return n
		}
	}
	t.Fatalf("no %s among %q", key, p.lines)
	return 0
}

func (p *program) kill(t *testing.T) {
	t.Helper()
	must.Do(t, p.cmd.Process.Kill())
	p.cmd.Wait()
}

func (p *program) has(t *testing.T, line string) {
	t.Helper()
	for _, l := range p.lines {
		if strings.Contains(l, line) {
			return
		}
	}
	t.Errorf("no line with %q among %q", line, p.lines)
}

// run runs a program to its end and returns its lines.
func run(t *testing.T, s *Sim, name string, args ...string) []string {
	t.Helper()
	cmd := exec.Command(s.Program(name), args...)
	cmd.Env = s.Env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
