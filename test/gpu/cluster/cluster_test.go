// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/cluster/machine"
	"vernier.dev/vernier/test/gpu/report"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// What a process has in its environment that is to enter the bare machine: its root, and what
// `make gpu-cluster` packed.
const (
	bareRoot   = "VERNIER_BARE_ROOT"
	barePacked = "VERNIER_BARE_PACKED"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(bareRoot); root != "" {
		err := enter(root, os.Getenv(barePacked), os.Args[1:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// Where the bare machine has what.
const (
	kitFolder = "/gpu-cluster"
	disk      = "/var"
)

// bareMachine is a root that has the C library, a shell, the kernel's file systems, and what
// `make gpu-cluster` packed: neither Go nor a compiler, nor any other program.
func bareMachine(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"/bin", "/dev", "/etc", "/old", "/proc", "/run/vernier-cluster", "/sbin", "/sys", "/tmp", kitFolder, disk + "/lib", disk + "/tmp", disk + "/log"} {
		must.Do(t, os.MkdirAll(root+dir, 0o755))
	}
	must.Do(t, os.Symlink("../run", root+disk+"/run"))
	for file, text := range map[string]string{"/etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "/etc/group": "root:x:0:\n", "/etc/hosts": "127.0.0.1 localhost\n", "/etc/resolv.conf": ""} {
		must.Do(t, os.WriteFile(root+file, []byte(text), 0o644))
	}
	for _, name := range []string{"/bin/sh", "/sbin/ldconfig", "/lib64/ld-linux-x86-64.so.2",
		"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libutil.so.1"} {
		if !strings.HasPrefix(name, "/") {
			name = "/lib/x86_64-linux-gnu/" + name
		}
		data, err := os.ReadFile(name)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(root+name), 0o755), os.WriteFile(root+name, data, 0o755))
		}
		must.Do(t, err)
	}
	return root
}

// enter makes the folder the root of this process's mount namespace, and becomes the program.
func enter(root, packed string, argv []string) error {
	bind := func(from, to string) error { return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "") }
	err := errors.Join(bind(root, root), bind(packed, root+kitFolder))
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run/vernier-cluster"} {
		err = errors.Join(err, bind(dir, root+dir))
	}
	err = errors.Join(err, unix.PivotRoot(root, root+"/old"), os.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH))
	if err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, []string{"PATH=/bin:/sbin", "HOME=/"})
}

// inside is a command on the bare machine.
func inside(ctx context.Context, root string, args ...string) *exec.Cmd {
	packed, err := packed()
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{kitFolder + "/gpu-cluster"}, args...)...)
	cmd.Env = append(os.Environ(), bareRoot+"="+root, barePacked+"="+packed)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	return cmd
}

// packed is where `make gpu-cluster` packs.
func packed() (string, error) {
	repo, err := manifests.Root()
	return filepath.Join(repo, "bin", "gpu-cluster"), err
}

func say(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	out, err := inside(t.Context(), root, args...).CombinedOutput()
	t.Logf("gpu-cluster %v: %v\n%s", args, err, out)
	return string(out), err
}

// What `make gpu-cluster` packs needs nothing of a machine but the C library and a shell: parts
// are checked and named, a cluster comes up, and each row passes on the simulated GPU that does
// not need a card; the others say what is missing. Interrupted, it leaves nothing.
func TestBareMachine(t *testing.T) {
	repo := must.Get(manifests.Root())(t)
	if out, err := exec.CommandContext(t.Context(), "make", "-s", "-C", repo, "gpu-cluster", "FAST=1").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	root := bareMachine(t)
	parts := addParts(t, root)
	oldLibrary(t, filepath.Join(root, "var", "tmp", "vernier-gpu-cluster", "root"))
	if out, err := say(t, root, "run"); err == nil || !strings.Contains(out, "no NVIDIA driver") || !strings.Contains(out, "install the driver") {
		t.Errorf("without a driver: %v, %s", err, out)
	}
	interrupted(t, root)

	// The others are tests that the lane of the end-to-end tests runs as well.
	var names []string
	for _, r := range rows {
		if strings.HasPrefix(r.test, "TestCard") || slices.Contains([]string{"share", "no-share", "driver-limits"}, r.Name) {
			names = append(names, r.Name)
		}
	}
	if _, err := say(t, root, "run", "--simulated", "--report=/tmp/report.json", "--only="+strings.Join(names, ",")); err != nil {
		t.Errorf("the rows: %v", err)
	}
	got := readReport(t, root)
	needCard := []string{"in-pods/nvidia-smi-limited", "in-pods/pytorch-memory", "in-pods/pytorch-30-beside-60", "driver-limits"}
	for _, name := range names {
		if got[name] == nil {
			t.Errorf("there is no row %s", name)
		}
	}
	for name, r := range got {
		want := report.Passed
		if slices.Contains(needCard, name) {
			want = report.Skipped
		}
		if r.Verdict != want || want == report.Skipped && r.Why == "" {
			t.Errorf("%s: %s, want %s: %s", name, r.Verdict, want, r.Why)
		}
	}
	left(t)
	t.Logf("%d parts, %d rows", parts, len(got))
}

// addParts adds them, and returns how many there are.
func addParts(t *testing.T, root string) int {
	t.Helper()
	dir := must.Get(packed())(t)
	files, err := filepath.Glob(filepath.Join(dir, "part-*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("parts %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > partBytes {
			t.Errorf("%s: %v, %v", f, info, err)
		}
	}
	if out, err := say(t, root, "run", "--simulated"); err == nil || !strings.Contains(out, "part-1, part-2") {
		t.Errorf("without parts: %v, %s", err, out)
	}
	damaged := filepath.Join(root, "tmp", "damaged")
	data := must.Get(os.ReadFile(files[0]))(t)
	data[len(data)/2]++
	must.Do(t, os.WriteFile(damaged, data, 0o644))
	if out, err := say(t, root, "add", "/tmp/damaged"); err == nil || !strings.Contains(out, "damaged") || !strings.Contains(out, "copy it again") {
		t.Errorf("a damaged part: %v, %s", err, out)
	}
	for i, f := range files {
		out, err := say(t, root, "add", filepath.Join(kitFolder, filepath.Base(f)))
		if last := i == len(files)-1; err != nil || last != strings.Contains(out, "all parts are unpacked") {
			t.Fatalf("part %d of %d: %v, %s", i+1, len(files), err, out)
		}
	}
	return len(files)
}

// oldLibrary fails where a program needs a newer C library than the docs promise.
func oldLibrary(t *testing.T, dir string) {
	t.Helper()
	const promised = 34
	programs := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := elf.Open(path)
		if err != nil {
			return nil // no program
		}
		defer f.Close()
		programs++
		symbols, err := f.ImportedSymbols()
		if errors.Is(err, elf.ErrNoSymbols) {
			return nil // static
		}
		for _, s := range symbols {
			if minor, is := strings.CutPrefix(s.Version, "GLIBC_2."); is {
				if n, err := strconv.ParseFloat(minor, 64); err != nil || n > promised {
					t.Errorf("%s needs %s for %s; the docs promise glibc 2.%d", path, s.Version, s.Name, promised)
				}
			}
		}
		return err
	})
	if err != nil || programs < 20 {
		t.Errorf("%d programs, %v", programs, err)
	}
}

// interrupted runs it until a row has passed, and has it end.
func interrupted(t *testing.T, root string) {
	t.Helper()
	cmd := inside(t.Context(), root, "run", "--simulated", "--only=inventory,share", "--report=/tmp/report.json")
	read, write, err := os.Pipe()
	must.Do(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	must.Do(t, cmd.Start())
	write.Close()
	var said bytes.Buffer
	buffer := make([]byte, 4096)
	for sent := false; ; {
		n, err := read.Read(buffer)
		said.Write(buffer[:n])
		if !sent && strings.Contains(said.String(), "passed   inventory") {
			sent = true
			must.Report(t, cmd.Process.Signal(syscall.SIGINT))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
	}
	err = cmd.Wait()
	t.Logf("interrupted: %v\n%s", err, said.String())
	if err == nil {
		t.Errorf("interrupted it ends with %v:\n%s", err, said.String())
	}
	if got := readReport(t, root); len(got) != 2 || got["inventory"].Verdict != report.Passed || got["share"].Verdict == report.Passed {
		t.Errorf("its report has %v", got)
	}
	left(t)
}

func readReport(t *testing.T, root string) map[string]*report.Row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "tmp", "report.json"))
	var rep report.Report[struct{}]
	if err == nil {
		err = json.Unmarshal(text, &rep)
	}
	must.Do(t, err)
	got := map[string]*report.Row{}
	for _, r := range rep.Rows {
		got[r.Name] = r
	}
	return got
}

// left fails if anything of a cluster is on the machine.
func left(t *testing.T) {
	t.Helper()
	h := must.Get(machine.FindHierarchies())(t)
	if groups := h.Leftovers("vernier-"); len(groups) > 0 {
		t.Errorf("control groups are left: %v", groups)
	}
	if _, err := os.Stat("/run/vernier-cluster/state.json"); err == nil {
		t.Error("the record of a cluster is left")
	}
}

// What the tests print becomes rows: a test's and its parts', with figures, and why one has
// failed. What had not ended has failed.
func TestFollow(t *testing.T) {
	const printed = `=== RUN   TestCardShares
=== RUN   TestCardShares/quota
=== ATTR  TestCardShares/quota work_1 29.5
=== ATTR  TestCardShares/quota nvml no answer
    card_test.go:1: 12 percent
        of 30
--- FAIL: TestCardShares (2.50s)
    --- FAIL: TestCardShares/quota (1.00s)
=== RUN   TestExclusive
--- PASS: TestExclusive (0.25s)
=== RUN   TestComputeShare
=== PAUSE TestComputeShare
=== RUN   TestMPS
    mps_test.go:1: not on this card
--- SKIP: TestMPS (0.00s)
=== RUN   TestAgentKilled
panic: gone
`
	chosen := slices.Clone(rows)
	var got []report.Row
	must.Do(t, follow(strings.NewReader(printed), chosen, func(r *report.Row) error { got = append(got, *r); return nil }))
	want := []report.Row{
		{Name: "in-pods", Verdict: report.Failed, Why: "see its parts", Seconds: 2.5},
		{Name: "in-pods/quota", Verdict: report.Failed, Why: "card_test.go:1: 12 percent\nof 30", Seconds: 1, Figures: map[string]any{"work_1": 29.5, "nvml": "no answer"}},
		{Name: "whole", Verdict: report.Passed, Seconds: 0.25},
		{Name: "mps", Verdict: report.Skipped, Why: "mps_test.go:1: not on this card"},
		{Name: "agent-killed", Verdict: report.Failed, Why: "panic: gone"},
	}
	for i := range got {
		if got[i].Promise == "" {
			t.Errorf("%s promises nothing", got[i].Name)
		}
		got[i].Promise = ""
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, r := range chosen {
		if reached := r.Verdict != ""; reached != slices.Contains([]string{"in-pods", "whole", "mps", "agent-killed"}, r.Name) {
			t.Errorf("%s: reached %t", r.Name, reached)
		}
	}
}

// Every row is a test that there is.
func TestRowsAreTests(t *testing.T) {
	repo := must.Get(manifests.Root())(t)
	files := must.Get(filepath.Glob(filepath.Join(repo, "test", "e2e", "*_test.go")))(t)
	var all strings.Builder
	for _, f := range files {
		text := must.Get(os.ReadFile(f))(t)
		all.Write(text)
	}
	names := map[string]bool{}
	for _, r := range rows {
		if !strings.Contains(all.String(), "\nfunc "+r.test+"(t *testing.T)") || names[r.Name] || names[r.test] {
			t.Errorf("%s: there is no %s in test/e2e, or another row is it", r.Name, r.test)
		}
		names[r.Name], names[r.test] = true, true
	}
	for line := range strings.Lines(all.String()) {
		if test, is := strings.CutPrefix(line, "func TestCard"); is && !names["TestCard"+strings.SplitN(test, "(", 2)[0]] {
			t.Errorf("no row is %s", line)
		}
	}
}
