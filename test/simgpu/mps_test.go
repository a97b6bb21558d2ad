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

	"github.com/NVIDIA/go-nvml/pkg/nvml"
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
	dir, err := os.MkdirTemp("", "mps") // a socket's path has 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
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
	log, err := os.OpenFile(m.pipe+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log // in the foreground the log goes there
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // its servers end with it
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
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
	for end := time.Now().Add(20 * time.Second); !is(); <-tick.C {
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
	data, err := os.ReadFile(m.Program(name))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(m.pipe), name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
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
	if os.Geteuid() != 0 {
		t.Skip("other users need root")
	}
	s := New(t, cfg)
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if s, err = Create(s.Bin, filepath.Join(dir, "state"), cfg); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SIMGPU_STATE", s.State)
	return s
}

func TestAnotherUserWaitsForTheServer(t *testing.T) {
	m := serve(t, reachable(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	p := holding(t, m.Sim, "", "--alloc", "1")
	first := m.ask(t, "get_server_list")
	other := m.as(t, 65534, "--alloc", "1", "--hold")
	await(t, "the other user's request", func() bool {
		log, err := os.ReadFile(m.pipe + ".log")
		return err == nil && strings.Contains(string(log), "from user 65534: Server is not ready")
	})
	m.wants(t, "get_client_list "+first, strconv.Itoa(p.cmd.Process.Pid))
	p.kill(t)
	if !other.await() {
		t.Fatalf("%q", other.lines)
	}
	second := m.ask(t, "get_server_list")
	info, err := os.Stat("/proc/" + second)
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("server %s after %s: %v", second, first, err)
	}
}

func TestUsersShareTheServerInMultiUserMode(t *testing.T) {
	m := serve(t, reachable(t, Config{GPUs: []GPU{{Model: A100}}}), nil, "-multiuser-server")
	server := m.server(t)
	holding(t, m.Sim, "", "--alloc", "1")
	if other := m.as(t, 65534, "--alloc", "1", "--hold"); !other.await() {
		t.Fatalf("%q", other.lines)
	}
	if n := len(strings.Fields(m.ask(t, "get_client_list "+server))); n != 2 {
		t.Errorf("%d clients", n)
	}
}

func TestServerTakesSoManyContexts(t *testing.T) {
	for driver, most := range map[string]string{DriverNewest: "60", Driver535: "48"} {
		t.Run(driver, func(t *testing.T) {
			m := serve(t, New(t, Config{Driver: driver, GPUs: []GPU{{Model: A100}}}), nil)
			if got := run(t, m.Sim, "unit/mps", "full"); got[0] != "contexts="+most {
				t.Errorf("%q, want %s", got, most)
			}
		})
	}
}

func TestMPSLimitsAreReadBack(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100, Count: 2}}}), nil)
	uuid := ""
	if st, err := m.Status(); err == nil {
		uuid = st.Devices[1].UUID
	}
	m.wants(t, "get_default_active_thread_percentage", "100.0")
	m.wants(t, "set_default_active_thread_percentage 30", "30.0")
	m.wants(t, "set_default_device_pinned_mem_limit 0 5120M", "")
	m.wants(t, "set_default_device_pinned_mem_limit "+uuid+" 900M", "")
	m.wants(t, "get_default_device_pinned_mem_limit 0", "5G")
	m.wants(t, "get_default_device_pinned_mem_limit "+uuid, "900M")
	pid := m.server(t)
	m.wants(t, "get_active_thread_percentage "+pid, "30.0")
	m.wants(t, "get_device_pinned_mem_limit "+pid+" 0", "5G")
	m.wants(t, "get_device_pinned_mem_limit "+pid+" 1", "900M")
	m.wants(t, "set_active_thread_percentage "+pid+" 12.5", "12.5")
	m.wants(t, "set_device_pinned_mem_limit "+pid+" 1 1G", "")
	m.wants(t, "get_device_pinned_mem_limit "+pid+" "+uuid, "1G")
	for _, bad := range []string{
		"set_default_active_thread_percentage 0", "set_default_active_thread_percentage 101",
		"set_default_device_pinned_mem_limit 0 5", "set_device_pinned_mem_limit " + pid + " 2 1G",
		"get_server_status 1", "start_server -uid 0", "nonsense",
	} {
		if m.ask(t, bad) == "" {
			t.Errorf("%s is accepted", bad)
		}
	}
	m.wants(t, "get_active_thread_percentage "+pid, "12.5")
	m.wants(t, "quit", "")
	if _, err := m.try("get_server_list"); err == nil {
		t.Error("it answers after quit")
	}
}

// The environment of a client lowers what it may, and never raises it; but naming
// a device that it doesn't see drops all memory limits, as with the real one.
func TestMPSClientsAreHeldToTheirLimits(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), []string{
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G"})
	tests := []struct {
		name, threads, pinned string
		mib                   uint64
		percent               float64
	}{
		{"the daemon's", "", "", 2048, 30},
		{"lowered", "10", "0=512M", 512, 10},
		{"not raised", "100", "0=64G", 2048, 30},
		{"a device that isn't there", "", "1=512M", 81313, 30},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", test.threads)
			t.Setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", test.pinned)
			p := &program{lines: run(t, m.Sim, "cudademo", "--alloc-until-fail", "--burn", "150")}
			if got := p.number(t, "allocated mib="); got != test.mib {
				t.Errorf("%d MiB, want %d", got, test.mib)
			}
			// Wall time may be lost, never won: no faster than the ceiling.
			_, share, _ := strings.Cut(p.lines[len(p.lines)-1], "share_percent=")
			if got, err := strconv.ParseFloat(share, 64); err != nil || got > test.percent {
				t.Errorf("%q, want at most %v %%", p.lines, test.percent)
			}
		})
	}
}

// A driver root has the programs where a real one has them, and they work there.
func TestDriverRootHasTheMPSPrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("device nodes need root")
	}
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	root := t.TempDir()
	if err := s.DriverRoot(root, false); err != nil {
		t.Fatal(err)
	}
	serve(t, &Sim{Bin: filepath.Join(root, "usr", "bin"), State: s.State}, nil).server(t)
}

func TestWithoutAPipeThereIsNoMPS(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G"})
	m.server(t)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", m.pipe+"/nowhere")
	p := &program{lines: run(t, m.Sim, "cudademo", "--alloc-until-fail")}
	p.has(t, "allocated mib=81313")
}

// An exclusive device is the server's and its clients'; nobody gets round it by
// another pipe folder.
func TestExclusiveDeviceIsTheServersAndItsClients(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the compute mode needs root")
	}
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	d := device(t, open(t, m.Sim), 0)
	ok(t, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	server := m.server(t)
	a, b := holding(t, m.Sim, "", "--alloc", "100"), holding(t, m.Sim, "", "--alloc", "200")
	m.fails(t, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_MPS_PIPE_DIRECTORY="+m.pipe+"/nowhere")
	infos, ret := d.GetComputeRunningProcesses()
	ok(t, ret)
	clients, ret := d.GetMPSComputeRunningProcesses()
	ok(t, ret)
	if len(infos) != 3 || len(clients) != 2 || strconv.Itoa(int(infos[0].Pid)) != server {
		t.Errorf("all %+v, clients %+v, server %s", infos, clients, server)
	}
	if got := strings.Fields(m.ask(t, "get_client_list "+server)); len(got) != 2 ||
		got[0] != strconv.Itoa(a.cmd.Process.Pid) || got[1] != strconv.Itoa(b.cmd.Process.Pid) {
		t.Errorf("clients %q", got)
	}
}

func TestTerminatedClientLosesItsMemoryAlone(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	server := m.server(t)
	victim, other := launch(t, m.Sim, nil, "unit/mps", "until_failed"), holding(t, m.Sim, "", "--alloc", "200")
	victim.await()
	m.wants(t, "terminate_client "+server+" "+strconv.Itoa(victim.cmd.Process.Pid), "")
	victim.await()
	victim.has(t, "failed error=CUDA_ERROR_MPS_CLIENT_TERMINATED")
	st, err := m.Status()
	if err != nil {
		t.Fatal(err)
	}
	if st.Devices[0].UsedBytes != 200<<20 {
		t.Errorf("%d bytes are held", st.Devices[0].UsedBytes)
	}
	m.wants(t, "get_server_status "+server, "ACTIVE")
	other.kill(t)
}

// A fault of one client is every client's, and the server takes no more until the
// last of them is gone.
func TestClientFaultIsFatalForAllOfTheServer(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	server := m.server(t)
	a, b := launch(t, m.Sim, nil, "unit/mps", "until_failed"), launch(t, m.Sim, nil, "unit/mps", "until_failed")
	a.await()
	b.await()
	if err := m.MPS("0", "fault", strconv.Itoa(a.cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	m.wants(t, "get_server_status "+server, "FAULT")
	m.fails(t, "CUDA_ERROR_MPS_SERVER_NOT_READY")
	for _, p := range []*program{a, b} {
		p.await()
		p.has(t, "failed error=CUDA_ERROR_LAUNCH_FAILED")
	}
	a.kill(t)
	m.wants(t, "get_server_status "+server, "FAULT")
	b.kill(t)
	m.wants(t, "get_server_status "+server, "ACTIVE")
	run(t, m.Sim, "cudademo", "--alloc", "1")
}

func TestServersEndIsItsClientsEnd(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	server := m.server(t)
	p := launch(t, m.Sim, nil, "unit/mps", "until_failed")
	p.await()
	if err := m.MPS("0", "server-crash"); err != nil {
		t.Fatal(err)
	}
	p.await()
	p.has(t, "failed error=CUDA_ERROR_MPS_RPC_FAILURE")
	await(t, "an empty list", func() bool { return m.ask(t, "get_server_list") == "" })
	run(t, m.Sim, "cudademo", "--alloc", "1") // starts another
	if next := m.ask(t, "get_server_list"); next == server || next == "" {
		t.Errorf("server %q after %s", next, server)
	}
}

// The daemon's death takes neither server nor clients along, and leaves the folder
// to its successor.
func TestControlDaemonsDeath(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	m.server(t)
	p := launch(t, m.Sim, nil, "unit/mps", "until_failed")
	p.await()
	if err := m.MPS("0", "crash"); err != nil {
		t.Fatal(err)
	}
	await(t, "no daemon", func() bool {
		_, err := m.try("get_server_list")
		return err != nil
	})
	run(t, m.Sim, "cudademo", "--alloc", "1") // without MPS
	m.start(t)
	second := m.server(t)
	m.wants(t, "get_client_list "+second, "")
	p.kill(t) // now the first server has no client any more
	await(t, "the first server's end", func() bool {
		st, err := m.Status()
		return err == nil && len(st.Clients) == 1 && strconv.Itoa(st.Clients[0].PID) == second && st.Clients[0].MPS == "server"
	})
}

func TestPlantedFaultsOfTheControlDaemon(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	plant := func(fault, value string) {
		t.Helper()
		if err := m.MPS("0", fault, value); err != nil {
			t.Fatal(err)
		}
	}
	plant("refuse", "on")
	if m.ask(t, "set_default_active_thread_percentage 30") == "30.0" {
		t.Error("not refused")
	}
	plant("refuse", "off")
	plant("ignore", "on")
	m.wants(t, "set_default_active_thread_percentage 30", "30.0")
	m.wants(t, "get_default_active_thread_percentage", "100.0")
	plant("ignore", "off")
	plant("slow", "1")
	m.wants(t, "set_default_active_thread_percentage 30", "30.0")
	plant("slow", "0")
	plant("hang", "on")
	answered := make(chan string)
	go func() {
		text, _ := m.try("get_default_active_thread_percentage")
		answered <- text
	}()
	select {
	case text := <-answered:
		t.Errorf("a hanging daemon answers %q", text)
	case <-time.After(50 * time.Millisecond): // it would answer within one
	}
	plant("hang", "off")
	if text := <-answered; text != "30.0" {
		t.Errorf("after the hang %q", text)
	}
	plant("no-start", "on")
	m.fails(t, "CUDA_ERROR_MPS_CONNECTION_FAILED")
	m.wants(t, "get_server_list", "")
	plant("no-start", "off")
	m.server(t)
}
