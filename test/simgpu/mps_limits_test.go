// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/test/must"
)

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
	for bad, said := range map[string]string{
		"set_default_active_thread_percentage 0":       "30.0", // what holds
		"set_default_active_thread_percentage 101":     "30.0",
		"set_device_pinned_mem_limit " + pid + " 2 1G": "Invalid device ordinal!",
		"get_server_status 1":                          "Server 1 not found",
		"start_server -uid 0":                          "A server is already running: " + pid,
		"nonsense":                                     `Unknown command "nonsense"`,
	} {
		m.wants(t, bad, said)
	}
	m.wants(t, "set_device_pinned_mem_limit "+pid+" 1 1500M", "")
	m.wants(t, "get_device_pinned_mem_limit "+pid+" 1", "1G") // and what is beyond is not told
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
	needRoot(t, "device nodes need")
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	root := t.TempDir()
	must.Do(t, s.DriverRoot(root, false))
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
	needRoot(t, "the compute mode needs")
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	d := device(t, open(t, m.Sim), 0)
	ok(t, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	server := m.server(t)
	a, b := holding(t, m.Sim, "", "--alloc", "100"), holding(t, m.Sim, "", "--alloc", "200")
	m.fails(t, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_MPS_PIPE_DIRECTORY="+m.pipe+"/nowhere")
	infos := value(d.GetComputeRunningProcesses())(t)
	clients := value(d.GetMPSComputeRunningProcesses())(t)
	if len(infos) != 3 || len(clients) != 2 || strconv.Itoa(int(infos[0].Pid)) != server {
		t.Errorf("all %+v, clients %+v, server %s", infos, clients, server)
	}
	if got := strings.Fields(m.ask(t, "get_client_list "+server)); len(got) != 2 ||
		got[0] != strconv.Itoa(a.cmd.Process.Pid) || got[1] != strconv.Itoa(b.cmd.Process.Pid) {
		t.Errorf("clients %q", got)
	}
}
