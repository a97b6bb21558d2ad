// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vernier.dev/vernier/test/cluster/tools"
	"vernier.dev/vernier/test/gpu/report"
)

// limit is for the cluster and all rows together on a real card, whose machine is lent for a
// time; grace is what taking it down may take.
const (
	limit = 8*time.Minute + 20*time.Second
	grace = time.Minute
)

// tests is a command of the packed end-to-end tests, with nothing else of the machine in PATH
// before what was packed.
func (o *options) tests(ctx context.Context, args ...string) *exec.Cmd {
	root := o.root()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "e2e.test"), args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), tools.ReadyVariable+"="+filepath.Join(root, "tools"),
		"PATH="+filepath.Join(root, "sbin")+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = grace
	// It takes its cluster down when it is interrupted, and is waited for.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

func (o *options) run() (code int, err error) {
	chosen, err := o.chosen()
	if err != nil {
		return 0, err
	}
	want, err := checksums()
	if err != nil {
		return 0, err
	}
	if missing := o.missing(want); len(missing) > 0 {
		return 0, fmt.Errorf("not added to %s: %s: gpu-cluster add PART... (or name its folder by --dir)", o.dir, strings.Join(missing, ", "))
	}
	if !o.unpacked(want) {
		return 0, fmt.Errorf("the parts are not unpacked in %s: gpu-cluster add", o.dir)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	card, names := "simulated", []string{}
	if !o.simulated {
		card = "real"
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	all, err := os.Create(o.report + ".log")
	if err != nil {
		return 0, err
	}
	defer all.Close()
	for _, r := range chosen {
		names = append(names, r.test)
	}
	cmd := o.tests(ctx, "-card="+card, fmt.Sprintf("-keep=%t", o.keep), "-test.v", "-test.timeout=0",
		"-test.run=^("+strings.Join(names, "|")+")$")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = io.MultiWriter(os.Stderr, all)
	// Ctrl-C reaches all of a terminal's processes: the tests hear of it once, from here.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	rep := report.New[struct{}](o.simulated)
	unwritten := follow(io.TeeReader(out, all), chosen, func(r *report.Row) error { return rep.Add(o.report, r) })
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the tests had started outside the cluster
	fmt.Printf("all that the tests said: %s.log; the logs of all programs: %s\n", o.report, filepath.Join(o.root(), "bin", "log", "gpu-cluster"))
	if ended := cmd.ProcessState; !ended.Exited() || ended.ExitCode() == 2 { // killed, or a panic
		err = errors.Join(err, o.down())
	}
	if len(rep.Rows) == 0 {
		return 0, fmt.Errorf("the cluster did not come up (%w): what is above says why", cmp.Or(err, errors.New("it ran no row")))
	}
	for _, r := range chosen {
		if r.Verdict == "" {
			r.Verdict, r.Why = report.Skipped, "it did not come to it"
			unwritten = errors.Join(unwritten, rep.Add(o.report, &r.Row))
		}
	}
	code = rep.End(o.report)
	if code == 1 && cmd.ProcessState.Exited() {
		err = nil // the rows say it
	}
	return code, errors.Join(err, unwritten)
}

// down removes what is there of a cluster.
func (o *options) down() error { return o.tests(context.Background(), "-card=down").Run() }

// Lines of a verbose test.
var (
	began  = regexp.MustCompile(`^=== (RUN|NAME|CONT|PAUSE)\s+(\S+)$`)
	figure = regexp.MustCompile(`^\s*=== ATTR\s+(\S+) (\S+) (.*)$`)
	ended  = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)$`)
)

// follow reads what the tests print, and hands on each row as it ends. It marks those of chosen
// that it has seen. What had not ended when the tests did has failed.
func follow(out io.Reader, chosen []row, done func(*report.Row) error) (err error) {
	open := map[string]*report.Row{}
	said := map[string][]string{}
	current := ""
	end := func(name string, verdict report.Verdict, why string) {
		r := open[name]
		delete(open, name)
		test, part, _ := strings.Cut(name, "/")
		for i := range chosen {
			if chosen[i].test == test {
				r.Name, r.Promise = chosen[i].Name, chosen[i].Promise
				chosen[i].Verdict = verdict
			}
		}
		if part != "" {
			r.Name += "/" + part
		}
		if r.Verdict = verdict; verdict != report.Passed {
			r.Why = cmp.Or(strings.Join(said[name][:min(len(said[name]), 40)], "\n"), why)
		}
		err = errors.Join(err, done(r))
	}
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 4<<20)
	for scan.Scan() {
		line := scan.Text()
		if m := began.FindStringSubmatch(line); m != nil {
			if current = m[2]; m[1] == "PAUSE" {
				delete(open, current) // it begins later
			} else if open[current] == nil {
				open[current] = &report.Row{Name: current}
			}
		} else if m := figure.FindStringSubmatch(line); m != nil && open[m[1]] != nil {
			if value, err := strconv.ParseFloat(m[3], 64); err == nil {
				open[m[1]].Set(m[2], value)
			} else {
				open[m[1]].Set(m[2], m[3])
			}
		} else if m := ended.FindStringSubmatch(line); m != nil && open[m[2]] != nil {
			open[m[2]].Seconds, _ = strconv.ParseFloat(m[3], 64) // of digits
			end(m[2], map[string]report.Verdict{"PASS": report.Passed, "FAIL": report.Failed, "SKIP": report.Skipped}[m[1]], "see its parts")
		} else {
			said[current] = append(said[current], strings.TrimSpace(line))
		}
	}
	for name := range open {
		end(name, report.Failed, "it had not ended when the tests did")
	}
	return errors.Join(err, scan.Err())
}
