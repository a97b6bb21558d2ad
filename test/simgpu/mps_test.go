// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

// service is a control daemon with folders of its own.
type service struct {
	*Sim
	pipe, logs string
	env        []string
}

// serve starts a control daemon and ends it with the test.
func serve(t *testing.T, s *Sim, env []string, args ...string) *service {
	t.Helper()
	dir := ShortDir(t)
	m := &service{Sim: s, pipe: filepath.Join(dir, "pipe"), logs: filepath.Join(dir, "log")}
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", m.pipe)
	t.Setenv("CUDA_MPS_LOG_DIRECTORY", m.logs)
	m.env = s.Env(env...)
	m.start(t, args...)
	return m
}

// start starts the daemon, again where one was.
func (m *service) start(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(m.Program("nvidia-cuda-mps-control"), append([]string{"-f"}, args...)...)
	cmd.Env = m.env
	log := must.Get(os.OpenFile(m.pipe+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))(t)
	defer log.Close()
	cmd.Stdout = log // in the foreground the log goes there
	must.Do(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // its servers end with it
		select {
		case <-ended:
		case <-time.After(time.Minute):
			cmd.Process.Kill()
			t.Error("the control daemon does not end")
		}
	})
	await(t, "the control daemon", func() bool {
		_, err := m.try("")
		return err == nil
	})
}

func (m *service) try(command string) (string, error) {
	cmd := exec.Command(m.Program("nvidia-cuda-mps-control"))
	cmd.Env = m.env
	cmd.Stdin = strings.NewReader(command + "\n")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// ask sends a command and returns the reply.
func (m *service) ask(t *testing.T, command string) string {
	t.Helper()
	text, err := m.try(command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return text
}

func (m *service) wants(t *testing.T, command, reply string) {
	t.Helper()
	if got := m.ask(t, command); got != reply {
		t.Errorf("%s: %q, want %q", command, got, reply)
	}
}

// server starts one and returns its PID when it is active.
func (m *service) server(t *testing.T) string {
	t.Helper()
	m.wants(t, "start_server -uid "+strconv.Itoa(os.Geteuid()), "")
	pid := m.ask(t, "get_server_list")
	await(t, "an active server", func() bool { return m.ask(t, "get_server_status "+pid) == "ACTIVE" })
	return pid
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(90 * time.Second); !is(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

// fails runs a program that has to end with this error of CUDA's.
func (m *service) fails(t *testing.T, code string, env ...string) {
	t.Helper()
	cmd := exec.Command(m.Program("cudademo"))
	cmd.Env = m.Env(env...)
	if out, err := cmd.Output(); err == nil || !strings.Contains(string(out), "error="+code) {
		t.Errorf("%v, want %s: %s", err, code, out)
	}
}

// copied puts a program where every user can reach it.
func (m *service) copied(t *testing.T, name string) string {
	t.Helper()
	data := must.Get(os.ReadFile(m.Program(name)))(t)
	path := filepath.Join(filepath.Dir(m.pipe), name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	must.Do(t, os.WriteFile(path, data, 0o755))
	return path
}

// as starts the demo as another user.
func (m *service) as(t *testing.T, uid uint32, args ...string) *program {
	t.Helper()
	m.copied(t, "libcuda.so.1")
	other := &Sim{Bin: filepath.Dir(m.copied(t, "cudademo")), State: m.State}
	return launch(t, other, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, "cudademo", args...)
}

// reachable gives the machine a state file that every user can reach.
func reachable(t *testing.T, cfg Config) *Sim {
	t.Helper()
	needRoot(t, "other users need")
	s := New(t, cfg)
	s = must.Get(Create(s.Bin, filepath.Join(ShortDir(t), "state"), cfg))(t)
	t.Setenv("SIMGPU_STATE", s.State)
	return s
}
