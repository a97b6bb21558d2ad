// SPDX-License-Identifier: Apache-2.0

// Package flaky owns what becomes of a test that fails and then passes.
package flaky

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// scratch is a module with one test file, in which first() is true once.
const scratch = `package scratch

import (
	"os"
	"testing"
)

func first() bool {
	_, err := os.Stat("ran")
	_ = os.WriteFile("ran", nil, 0o600)
	return err != nil
}

func once(t *testing.T) {
	if f, err := os.OpenFile("runs", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(t.Name() + "\n")
		_ = f.Close()
	}
	if first() {
		t.Error("not yet")
	}
}

`

const flips = "func TestFlips(t *testing.T) { t.Log(1); t.Run(\"part\", once) }"

type module struct {
	t   *testing.T
	dir string
}

func newModule(t *testing.T, source string) *module {
	t.Helper()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("needs jq: test/deps.sh jq")
	}
	m := &module{t: t, dir: t.TempDir()}
	m.write("go.mod", "module scratch\n\ngo 1.26\n")
	m.write("a_test.go", scratch+source+"\n")
	return m
}

func (m *module) write(name, content string) {
	m.t.Helper()
	must.Do(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600))
}

func (m *module) read(name string) string {
	content, _ := os.ReadFile(filepath.Join(m.dir, name))
	return string(content)
}

// test runs gotest on the module and returns what it printed, and its status.
func (m *module) test(before string, flags ...string) (string, int) {
	m.t.Helper()
	gotest := must.Get(filepath.Abs("gotest"))(m.t)
	cmd := exec.Command(gotest, append([]string{"./...", "-count=1", "-vet=off"}, flags...)...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "VERNIER_BIN="+m.dir, "FLAKY_BEFORE="+before)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

const line = "FLAKY: scratch.TestFlips, a_test.go:20: not yet\n"

func TestFlaky(t *testing.T) {
	t.Parallel()
	m := newModule(t, flips)
	out, status := m.test("0")
	if status != 0 || !strings.HasSuffix(out, line) || m.read("flaky.txt") != line || m.read("runs") != strings.Repeat("TestFlips/part\n", 2) {
		t.Errorf("status %d, record %q, ran %q\n%s", status, m.read("flaky.txt"), m.read("runs"), out)
	}
	if out, status := m.test("1"); status != 0 || strings.Contains(out, "FLAKY") {
		t.Errorf("the next run: status %d\n%s", status, out)
	}
	// The same name twice.
	must.Do(t, os.Remove(filepath.Join(m.dir, "ran")))
	if out, status := m.test("1"); status == 0 || !strings.Contains(out, "TestFlips is not run again: it is in ") {
		t.Errorf("the same name twice: status %d\n%s", status, out)
	}
}

func TestFlaky_ThreeInARun(t *testing.T) {
	t.Parallel()
	m := newModule(t, flips)
	m.write("flaky.txt", "FLAKY: a.A, \nFLAKY: a.B, \nFLAKY: a.C, \n")
	if out, status := m.test("0"); status == 0 || !strings.Contains(out, "three were in this run") {
		t.Errorf("status %d\n%s", status, out)
	}
	_ = os.Remove(filepath.Join(m.dir, "ran"))
	if out, status := m.test("1"); status != 0 || !strings.HasSuffix(out, "FLAKY: a.B, \nFLAKY: a.C, \n"+line) {
		t.Errorf("with one of an earlier run: status %d\n%s", status, out)
	}
}

// Every line of the Makefile that runs tests of `make test` goes through gotest, but the one
// that runs what the race detector is too slow for: all that is left out for that.
func TestMakefile(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("make", "--no-print-directory", "-n", "-C", "../..", "run-unit-api", "run-e2e").CombinedOutput()
	if err != nil || strings.Count(string(out), " test/flaky/gotest ") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	var skipped, run, packages string
	for line := range strings.Lines(string(out)) {
		if _, after, found := strings.Cut(line, " -skip '"); found {
			skipped, _, _ = strings.Cut(after, "'")
		}
		if _, after, found := strings.Cut(line, " go test "); found {
			_, after, _ = strings.Cut(after, " -run '")
			run, packages, _ = strings.Cut(after, "'")
		}
	}
	if skipped == "" || !strings.HasSuffix(run, skipped) {
		t.Fatalf("skipped is %q, run %q", skipped, run)
	}
	long := regexp.MustCompile(skipped)
	for name, text := range tests(t) {
		path, _, _ := strings.Cut(text, "\n")
		if long.MatchString(name) && !slices.Contains(strings.Fields(packages), "./"+filepath.Dir(path)) {
			t.Errorf("%s of %s is left out under the race detector, and runs nowhere", name, path)
		}
	}
}

// What stays red, and how often it ran.
func TestRed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source string
		flags  string
		runs   int // -1 for none or one
		says   string
	}{
		"fails always":      {`func TestA(t *testing.T) { once(t); t.Error("never") }`, "", 2, "never"},
		"skipped then":      {`func TestA(t *testing.T) { once(t); if !t.Failed() { t.Skip() } }`, "", 2, "it was skipped then"},
		"hostile":           {`func TestHostileA(t *testing.T) { once(t) }`, "", 1, "never.txt"},
		"says an invariant": {`func TestA(t *testing.T) { t.Run("b", func(t *testing.T) { once(t); t.Log("Invariant 2: no") }) }`, "", 1, "never.txt"},
		"four at once":      {`func TestA(t *testing.T) { once(t); t.Fail() }; func TestB(t *testing.T) { TestA(t) }; func TestC(t *testing.T) { TestA(t) }; func TestD(t *testing.T) { TestA(t) }`, "", 4, "exceeds maximum"},
		"one of them is":    {`func TestA(t *testing.T) { once(t) }; func TestSoak(t *testing.T) { once(t); t.Fail() }`, "", 3, "TestSoak is not run again"},
		"races":             {`func TestA(t *testing.T) { once(t); n := 0; done := make(chan int); go func() { n++; close(done) }(); n++; <-done; _ = n }`, "-race", 1, "data race"},
		"panics":            {`func TestA(t *testing.T) { once(t); if t.Failed() { panic(1) } }`, "", 1, "panic"},
		"takes too long":    {`func TestA(t *testing.T) { once(t); if t.Failed() { select {} } }`, "-timeout=1s", -1, "panic"},
		"exits":             {`func TestA(t *testing.T) { once(t); if t.Failed() { os.Exit(1) } }`, "", 1, "did not end by itself"},
		"exits beside another": {`func TestA(t *testing.T) { once(t) }; func TestB(t *testing.T) { if _, err := os.Stat("b"); err != nil { os.Mkdir("b", 0o700); go os.Exit(1); select {} } }`,
			"", 2, "TestB is not run again: it did not end by itself"},
		"TestMain fails": {`func TestA(t *testing.T) {}; func TestMain(m *testing.M) { n := m.Run(); if first() { n = 1 }; os.Exit(n) }`, "", 0, "did not end by itself"},
		"does not build": {`func TestA(t *testing.T) { once() }`, "", 0, "not enough arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModule(t, test.source)
			out, status := m.test("0", strings.Fields(cmp.Or(test.flags, "-v"))...)
			if runs := strings.Count(m.read("runs"), "\n"); status == 0 || runs != test.runs && (test.runs >= 0 || runs > 1) || !strings.Contains(out, test.says) {
				t.Errorf("status %d, ran %d times, want %d, and %q\n%s", status, runs, test.runs, test.says, out)
			}
		})
	}
}
