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

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/test/must"
)

// run3 runs a command of protocol 3 and returns what it printed and whether it
// worked.
func (m *service) run3(args ...string) (string, bool) {
	cmd := exec.Command(m.Program("nvidia-cuda-mps-control"), args...)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err == nil
}

func (m *service) must3(t *testing.T, args ...string) string {
	t.Helper()
	out, ok := m.run3(args...)
	if !ok {
		t.Fatalf("%q: %s", args, out)
	}
	return out
}

func (m *service) refuses(t *testing.T, text string, args ...string) {
	t.Helper()
	if out, ok := m.run3(args...); ok || !strings.Contains(out, text) {
		t.Errorf("%q: %q, want an error with %q", args, out, text)
	}
}

// run3As is run3 by another user.
func (m *service) run3As(t *testing.T, uid uint32, args ...string) (string, bool) {
	t.Helper()
	cmd := exec.Command(m.copied(t, "nvidia-cuda-mps-control"), args...)
	cmd.Env = m.Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err == nil
}

// training is a daemon with one server that is ready.
func training(t *testing.T, s *Sim, args ...string) *service {
	t.Helper()
	m := serve(t, s, nil, append([]string{"-p", "3"}, args...)...)
	m.must3(t, "server", "create", "training")
	m.ready(t, "training")
	return m
}

func (m *service) ready(t *testing.T, server string) {
	t.Helper()
	await(t, "a ready server", func() bool {
		out, _ := m.run3("server", "get", server, "status")
		return out == "Ready"
	})
}

func TestNamespacesHoldTheirClients(t *testing.T) {
	m := training(t, New(t, Config{GPUs: []GPU{{Model: H200}}}))
	m.must3(t, "server", "set", "training", "--pinned-memory-limit=10G", "--active-thread-percentage=10")
	for name, limits := range map[string][]string{
		"half": {"--active-thread-percentage=50", "--pinned-memory-limit=4096M"},
		"free": nil, // inherits nothing
	} {
		m.must3(t, "namespace", "create", name, "--server=training")
		if limits != nil {
			m.must3(t, append([]string{"namespace", "set", name, "--server=training"}, limits...)...)
		}
	}
	tests := []struct {
		name, pipe, threads string
		mib                 uint64
		sms                 string
	}{
		{"a namespace's", "training/half", "", 4096, "66"},
		{"no more than that", "training/half", "100", 4096, "66"},
		{"less by the client", "training/half", "25", 4096, "32"},
		{"another one's", "training/free", "", 143387, "132"},
		{"the default one", "training/default", "", 10240, "12"},
		{"the server's socket is the default one's", "training", "", 10240, "12"},
		{"the daemon's socket is the user's own server's", "", "", 143387, "132"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(m.pipe, test.pipe))
			t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", test.threads)
			if got := run(t, m.Sim, "unit/mps", "sms"); got[0] != "sms="+test.sms {
				t.Errorf("%q, want %s", got, test.sms)
			}
			p := &program{lines: run(t, m.Sim, "cudademo", "--alloc-until-fail")}
			if got := p.number(t, "allocated mib="); got != test.mib {
				t.Errorf("%d MiB, want %d", got, test.mib)
			}
		})
	}
	if got := m.must3(t, "namespace", "get", "half", "training", "pinned-memory-limit"); got != "4G" {
		t.Errorf("read back %q", got)
	}
	want := "half,training,Ready,4G,50.00,0," + filepath.Join(m.pipe, "training", "half")
	if got := m.must3(t, "namespace", "list", "half", "--server=training", "--format=csv,noheader"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLimitsDoNotChangeUnderAClient(t *testing.T) {
	m := training(t, New(t, Config{GPUs: []GPU{{Model: A100}}}))
	m.must3(t, "namespace", "create", "a", "--server=training")
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(m.pipe, "training", "a"))
	p := launch(t, m.Sim, nil, "unit/mps", "until_failed")
	p.await()
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if got := m.must3(t, "client", "list", "--all", "--format=csv,noheader"); !strings.HasPrefix(got, pid+",training,0,a,") {
		t.Errorf("clients %q", got)
	}
	m.refuses(t, "active clients", "namespace", "set", "a", "--server=training", "--active-thread-percentage=20")
	m.refuses(t, "active clients", "namespace", "delete", "a", "--server=training")
	m.refuses(t, "active clients", "server", "delete", "training")
	m.must3(t, "client", "terminate", pid)
	p.await()
	p.has(t, "failed error=CUDA_ERROR_MPS_CLIENT_TERMINATED")
	p.kill(t)
	m.must3(t, "namespace", "delete", "a", "--server=training")
	if _, err := os.Stat(filepath.Join(m.pipe, "training", "a")); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
}

// A server whose process was killed shows as stopped, and starts for its next client.
func TestServerStartsAgainForItsNextClient(t *testing.T) {
	m := training(t, New(t, Config{GPUs: []GPU{{Model: A100}}}))
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(m.pipe, "training"))
	must.Do(t, m.MPS("0", "server-crash"))
	await(t, "a stopped server", func() bool { return m.must3(t, "server", "get", "training", "status") == "Stopped" })
	run(t, m.Sim, "cudademo", "--alloc", "1")
	m.ready(t, "training")
}

// With a server and a namespace of theirs only, other users can look and no more.
func TestOnlyTheOwnerChangesAServer(t *testing.T) {
	m := training(t, reachable(t, Config{GPUs: []GPU{{Model: A100}}}), "-m")
	m.must3(t, "namespace", "create", "a", "--server=training")
	m.refuses(t, "only UID 0", "server", "create", "other", "--uid=1000")
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(m.pipe, "training", "a"))
	if other := m.as(t, 65534, "--alloc", "1", "--hold"); !other.await() {
		t.Fatalf("%q", other.lines)
	}
	for _, args := range [][]string{
		{"namespace", "set", "a", "--server=training", "--active-thread-percentage=100"},
		{"namespace", "delete", "a", "--server=training"}, {"quit"},
		{"server", "delete", "training", "--force"},
		{"sm-partition", "create", "p", "--server=training", "--device=0", "--chunks=1"},
	} {
		if out, ok := m.run3As(t, 65534, args...); ok || !strings.Contains(out, "Insufficient privileges for UID 65534") {
			t.Errorf("%q: %q", args, out)
		}
	}
	if out, ok := m.run3As(t, 65534, "namespace", "list"); !ok {
		t.Errorf("a look: %s", out)
	}
}

func TestAServerIsItsUsersAlone(t *testing.T) {
	m := training(t, reachable(t, Config{GPUs: []GPU{{Model: A100}}}))
	m.must3(t, "server", "create", "other", "--uid=65534")
	m.fails(t, "CUDA_ERROR_NOT_PERMITTED", "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(m.pipe, "other"))
}

// What the documentation warns of: create succeeds, the server is gone, and its
// clients run without MPS.
func TestServerWithoutADeviceIsGone(t *testing.T) {
	m := training(t, New(t, Config{GPUs: []GPU{{Model: A100}}}))
	m.must3(t, "server", "create", "none", "--allowed-devices=GPU-00000000")
	await(t, "its end", func() bool { _, ok := m.run3("server", "get", "none", "pid"); return !ok })
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(m.pipe, "none"))
	p := &program{lines: run(t, m.Sim, "cudademo", "--alloc-until-fail")}
	p.has(t, "allocated mib=81313")
}

// Two servers are two processes to an exclusive device.
func TestSecondServerOfAnExclusiveDeviceDoesNotStart(t *testing.T) {
	needRoot(t, "the compute mode needs")
	m := training(t, New(t, Config{GPUs: []GPU{{Model: A100}}}))
	ok(t, device(t, open(t, m.Sim), 0).SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	m.must3(t, "server", "create", "second")
	await(t, "its end", func() bool { _, ok := m.run3("server", "get", "second", "pid"); return !ok })
	m.ready(t, "training")
}

func TestOlderDriverHasNoProtocol3(t *testing.T) {
	s := New(t, Config{Driver: Driver535, GPUs: []GPU{{Model: A100}}})
	for _, args := range [][]string{{"-f", "-p", "3"}, {"server", "list"}, {"-q"}} {
		cmd := exec.Command(s.Program("nvidia-cuda-mps-control"), args...)
		cmd.Env = s.Env("CUDA_MPS_PIPE_DIRECTORY=" + t.TempDir())
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Cannot find MPS control daemon") {
			t.Errorf("%q: %v %s", args, err, out)
		}
	}
}
