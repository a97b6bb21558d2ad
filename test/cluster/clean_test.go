// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/must"
)

// footprint is everything on the machine that a cluster could leave changed, by
// name. Processes count when they are a cluster's by group or by command line.
func footprint(t *testing.T) map[string]string {
	t.Helper()
	f := map[string]string{}
	read := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			return "unreadable"
		}
		return string(data)
	}
	mounts := strings.Split(read("/proc/self/mounts"), "\n")
	slices.Sort(mounts)
	f["mounts"] = strings.Join(mounts, "\n")
	f["routes"] = read("/proc/net/route")
	interfaces := must.Get(net.Interfaces())(t)
	for _, i := range interfaces {
		f["interface "+i.Name] = "there"
	}
	// What these count goes up and down by itself.
	counters := regexp.MustCompile(`random/|/ns_last_pid|/pty/nr|-state$|-nr$|/stat_refresh|conntrack|/quota/|/oops_count|/warn_count`)
	for _, root := range []string{"/proc/sys/vm", "/proc/sys/kernel", "/proc/sys/fs", "/proc/sys/net"} {
		walk(t, root, func(path string, e fs.DirEntry) {
			if !e.IsDir() && !counters.MatchString(path) {
				f[path] = read(path)
			}
		})
	}
	// The tests beside this one make groups, and take them away.
	tests := regexp.MustCompile(`/(simgpu|inventory-test)-`)
	walk(t, "/sys/fs/cgroup", func(path string, e fs.DirEntry) {
		if tests.MatchString(path) {
			return
		}
		if e.IsDir() && strings.Contains(path, "vernier") {
			f[path] = "control group"
		}
		if strings.HasSuffix(path, "cgroup.subtree_control") && strings.Count(path, "/") <= 5 {
			f[path] = read(path)
		}
	})
	for _, dir := range []string{"/etc", "/opt", "/run", "/var/lib", "/var/lib/kubelet", "/var/lib/cni", "/var/log"} {
		entries, _ := os.ReadDir(dir) // absent is a value too
		for _, e := range entries {
			if dir == "/run" && e.Name() == "mount" {
				continue // libmount's: the first mount command of a machine makes it, of any test
			}
			f[filepath.Join(dir, e.Name())] = "there"
		}
	}
	for name, command := range clusterProcesses(t) {
		f[name] = command
	}
	return f
}

func walk(t *testing.T, root string, visit func(string, fs.DirEntry)) {
	t.Helper()
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil { // files come and go under /proc and /sys
			visit(path, e)
		}
		return nil
	})
}

func clusterProcesses(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	dirs := must.Get(filepath.Glob("/proc/[0-9]*"))(t)
	for _, dir := range dirs {
		command, _ := os.ReadFile(dir + "/cmdline")
		group, _ := os.ReadFile(dir + "/cgroup")
		if len(command) == 0 {
			continue // a kernel thread, or a zombie that the machine's first process has yet to collect
		}
		if bytes.Contains(group, []byte("/vernier-")) || bytes.Contains(command, []byte(cluster.DefaultDir)) {
			found["process "+filepath.Base(dir)] = strings.ReplaceAll(string(command), "\x00", " ")
		}
	}
	return found
}

func same(t *testing.T, before, after map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if was, ok := before[name]; !ok {
			t.Errorf("left behind: %s: %.200s", name, after[name])
		} else if was != after[name] {
			t.Errorf("changed: %s\n  before: %.2000s\n  after: %.2000s", name, was, after[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[name]; !ok {
			t.Errorf("taken away: %s", name)
		}
	}
}

// settle removes what earlier runs left, and waits until no other process has a
// cluster: its footprint would be taken for ours.
func settle(t *testing.T) {
	t.Helper()
	for {
		err := cluster.Remove(t.Context())
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "still runs") {
			t.Fatal(err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(time.Second):
		}
	}
}

func TestDownLeavesNothing(t *testing.T) {
	settle(t)
	before := footprint(t)
	c := up(t, cluster.Config{})
	startPod(t, c, "last", c.Nodes[0].Name)
	must.Get(c.StartProcess(cluster.Command{Name: "stubborn", Argv: []string{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"}}))(t)
	if got := len(clusterProcesses(t)); got < 10 {
		t.Fatalf("only %d processes of the cluster were found: the test looks in the wrong place", got)
	}
	must.Do(t, c.Down())
	same(t, before, footprint(t))
}

func TestCancelTakesDown(t *testing.T) {
	for _, when := range []string{"namespaces", "API server ready", "ever"} {
		t.Run("after "+when, func(t *testing.T) {
			settle(t)
			before := footprint(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c, err := cluster.Up(ctx, cluster.Config{Progress: writer(func(line string) {
				if strings.Contains(line, when) {
					cancel()
				}
			})})
			if when == "ever" {
				must.Do(t, err)
				cancel()
				await(t, "the end of the cluster without a call of Down", func() (bool, error) {
					left := clusterProcesses(t)
					return len(left) == 0, fmt.Errorf("still there: %v", left)
				})
				must.Do(t, c.Down()) // waits for the rest
			} else if !errors.Is(err, context.Canceled) {
				t.Fatalf("Up returned %v", err)
			}
			same(t, before, footprint(t))
		})
	}
}

type writer func(string)

func (w writer) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}

const childEnv = "VERNIER_TEST_HARNESS_DIES_AFTER"

// child is a harness that dies without a word at a chosen moment of its start.
func child() {
	die := func() {
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	}
	moment := os.Getenv(childEnv)
	_, err := cluster.Up(context.Background(), cluster.Config{Progress: writer(func(line string) {
		if strings.Contains(line, moment) {
			die()
		}
	})})
	if err == nil && moment == "Up" {
		die()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestUpRemovesWhatAKilledHarnessLeft(t *testing.T) {
	settle(t)
	before := footprint(t)
	for _, moment := range []string{"namespaces", "API server ready", "Up"} {
		t.Run("after "+moment, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+moment)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("the harness was to be killed: %v\n%s", err, out)
			}
			if len(clusterProcesses(t)) == 0 {
				t.Fatal("the killed harness left nothing to remove: the test proves nothing")
			}
			c := up(t, cluster.Config{})
			startPod(t, c, "fresh", c.Nodes[0].Name)
			must.Do(t, c.Down())
			same(t, before, footprint(t))
		})
	}
}

func TestKeptClusterIsNotTouched(t *testing.T) {
	settle(t)
	c := up(t, cluster.Config{})
	if err := cluster.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "still runs") {
		t.Fatalf("Remove of a living process's cluster: %v", err)
	}
	must.Do(t, c.Keep())
	if _, err := cluster.Up(t.Context(), cluster.Config{}); err == nil || !strings.Contains(err.Error(), "vernier-cluster down") {
		t.Fatalf("Up beside a kept cluster: %v", err)
	}
	attached := must.Get(cluster.Attach(t.Context()))(t)
	startPod(t, attached, "later", attached.Nodes[0].Name)
	must.Do(t, attached.Nodes[0].RestartKubelet(t.Context()))
	if err := attached.Down(); err == nil {
		t.Error("an attached process took the cluster down")
	}
	must.Do(t, cluster.Remove(t.Context()))
	if left := clusterProcesses(t); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
}
