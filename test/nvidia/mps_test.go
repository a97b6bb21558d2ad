// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// unlike are the commands that the simulated daemon answers otherwise, and why.
var unlike = map[string]string{
	// A machine without a GPU has no such device, and the simulated one has: there the
	// first takes all limits away, as a word that names nothing does.
	"set_default_device_pinned_mem_limit GPU-": "the device is there",
	"get_default_device_pinned_mem_limit GPU-": "the device is there",
}

const answerTime = 10 * time.Second

// daemon is a control daemon's program and where it is told to live.
type daemon struct {
	program string
	env     []string
	pipe    string
}

func newDaemon(t *testing.T, program string, env ...string) *daemon {
	t.Helper()
	dir := simgpu.ShortDir(t)
	d := &daemon{program: program, pipe: filepath.Join(dir, "pipe")}
	logs := filepath.Join(dir, "log")
	for _, made := range []string{d.pipe, logs} {
		must.Do(t, os.Mkdir(made, 0o755))
	}
	d.env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+d.pipe, "CUDA_MPS_LOG_DIRECTORY="+logs)
	d.env = append(d.env, env...)
	return d
}

// run runs the program and says what it answered, with its exit status.
func (d *daemon) run(t *testing.T, input string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.program, args...)
	cmd.Env, cmd.Stdin = d.env, strings.NewReader(input)
	cmd.WaitDelay = time.Second // what -d leaves behind has our output
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%s %v %q: %v", d.program, args, input, err)
	}
	return fmt.Sprintf("%s[%d]", out, cmd.ProcessState.ExitCode())
}

// start starts the daemon in the foreground. What it says there is in log.
func (d *daemon) start(t *testing.T, args ...string) (end func() int, log *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(d.program, append([]string{"-f"}, args...)...)
	log = &bytes.Buffer{}
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env, log, nil
	must.Do(t, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGKILL); <-ended })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(answerTime); !strings.HasSuffix(d.run(t, "get_server_list\n"), "[0]"); {
		select {
		case <-ended:
			return nil, log
		case <-late:
			t.Fatalf("%s does not answer", d.program)
		case <-tick.C:
		}
	}
	return func() int { <-ended; return cmd.ProcessState.ExitCode() }, log
}

// files are those in the pipe folder.
func (d *daemon) files(t *testing.T) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(d.pipe))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name()+" "+e.Type().String())
	}
	return names
}

// both are the real daemon of a driver, and the simulated one of the same.
func both(t *testing.T, d driver) (real, ours *daemon) {
	t.Helper()
	sim := simgpu.New(t, simgpu.Config{Driver: d.version, GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
	must.Do(t, sim.MPS("0", "no-start", "on")) // as without a GPU
	return newDaemon(t, d.control()), newDaemon(t, sim.Program("nvidia-cuda-mps-control"), sim.Env()...)
}

// The same commands get the same answers, and the same exit statuses.
func TestMPSCommands(t *testing.T) {
	text := must.Get(os.ReadFile("commands.txt"))(t)
	each(t, func(t *testing.T, d driver) {
		real, ours := both(t, d)
		realEnd, _ := real.start(t)
		oursEnd, _ := ours.start(t)
		for _, command := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			want, got := real.run(t, command+"\n"), ours.run(t, command+"\n")
			// A server that cannot start is listed for a moment.
			for late := time.Now().Add(answerTime); command == "get_server_list" && got != want && time.Now().Before(late); {
				want, got = real.run(t, command+"\n"), ours.run(t, command+"\n")
			}
			if got != want && !slices.ContainsFunc(slices.Collect(maps.Keys(unlike)), func(k string) bool { return strings.HasPrefix(command, k) }) {
				t.Errorf("%q: the real daemon answers %q, the simulated one %q", command, want, got)
			}
		}
		three := "get_default_active_thread_percentage\nset_default_active_thread_percentage 40\nget_default_active_thread_percentage"
		if want, got := real.run(t, three), ours.run(t, three); got != want {
			t.Errorf("three at once: %q, want %q", got, want)
		}
		// A server that could not start is the daemon's failure, too.
		for name, daemon := range map[string]*daemon{"real": real, "simulated": ours} {
			if said := daemon.run(t, "quit\n"); !strings.HasPrefix(said, "[") {
				t.Errorf("the %s one answers quit with %q", name, said)
			}
		}
		realEnd()
		oursEnd()
		if want, got := real.files(t), ours.files(t); !slices.Equal(want, got) {
			t.Errorf("after the end the folder has %q, want %q", got, want)
		}
	})
}

// What a client can do to the real daemon: connections that say nothing keep it from
// answering while they are there, and what fills its pipe for logs does for ever. So
// containers do not have that pipe.
func TestMPSClientsHangTheDaemon(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		real, _ := both(t, d)
		real.start(t)
		const question = "get_default_active_thread_percentage\n"
		answer := real.run(t, question)
		var held []int
		for {
			fd := must.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
			held = append(held, fd)
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(real.pipe, "control")}); err != nil {
				break // its backlog is full
			}
		}
		if said := real.run(t, question); said == answer {
			t.Errorf("with %d silent connections it answers %q", len(held), said)
		}
		for _, fd := range held {
			must.Do(t, unix.Close(fd))
		}
		if said := real.run(t, question); said != answer {
			t.Errorf("after they have gone it answers %q, want %q", said, answer)
		}
		fd := must.Get(unix.Open(filepath.Join(real.pipe, "log"), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0))(t)
		for {
			if _, err := unix.Write(fd, bytes.Repeat([]byte("x"), 4096)); err != nil {
				break
			}
		}
		must.Do(t, unix.Close(fd))
		if said := real.run(t, question); said == answer {
			t.Errorf("with its pipe for logs full it answers %q", said)
		}
	})
}

// What is started, and what not.
func TestMPSCommandLine(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		real, ours := both(t, d)
		status := func(said string) string { return said[strings.LastIndexByte(said, '['):] }
		for _, args := range [][]string{{}, {"-h"}, {"--help"}, {"-x"}, {"-x", "-f"}, {"-f", "-x"}, {"-f", "-m"}, {"-d", "-p", "3"}, {"-v"}} {
			want, got := real.run(t, "", args...), ours.run(t, "", args...)
			if status(want) != status(got) || strings.Contains(want, "Cannot find") != strings.Contains(got, "Cannot find") {
				t.Errorf("%v without a daemon: %q, want as %q", args, got, want)
			}
		}
		if _, err := os.Stat(filepath.Join(real.pipe, "log")); err == nil {
			t.Error("one of them has started a daemon")
		}
		ends := map[*daemon]func() int{}
		for _, daemon := range []*daemon{real, ours} {
			end, log := daemon.start(t, "-multiuser-server")
			if starts := d.branch() >= "555"; (end != nil) != starts {
				t.Errorf("%s -multiuser-server starts: %v, want %v", daemon.program, end != nil, starts)
			}
			if end != nil {
				daemon.run(t, "quit\n")
				if status := end(); status != 0 || !strings.Contains(log.String(), "Starting control daemon") {
					t.Errorf("%s ends with %d and has said %q", daemon.program, status, log)
				}
			}
			ends[daemon], _ = daemon.start(t)
			if ends[daemon] == nil {
				t.Fatalf("%s does not start", daemon.program)
			}
		}
		if want, got := real.files(t), ours.files(t); !slices.Equal(want, got) {
			t.Errorf("while it runs the folder has %q, want %q", got, want)
		}
		for _, how := range []string{"-f", "-d"} {
			if want, got := real.run(t, "", how), ours.run(t, "", how); got != want {
				t.Errorf("a second daemon, %s: %q, want %q", how, got, want)
			}
		}
		for _, daemon := range []*daemon{real, ours} {
			daemon.run(t, "quit\n")
			ends[daemon]() // the answer comes before it has ended
			if said := daemon.run(t, "", "-d"); said != "[0]" {
				t.Errorf("%s -d: %q", daemon.program, said)
			}
			if said := daemon.run(t, "get_server_list\nquit -t 1\n"); said != "[0]" {
				t.Errorf("%s in the background: %q", daemon.program, said)
			}
		}
	})
}
