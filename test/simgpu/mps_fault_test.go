// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"strconv"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

func TestTerminatedClientLosesItsMemoryAlone(t *testing.T) {
	m := serve(t, New(t, Config{GPUs: []GPU{{Model: A100}}}), nil)
	server := m.server(t)
	victim, other := launch(t, m.Sim, nil, "unit/mps", "until_failed"), holding(t, m.Sim, "", "--alloc", "200")
	victim.await()
	m.wants(t, "terminate_client "+server+" "+strconv.Itoa(victim.cmd.Process.Pid), "")
	victim.await()
	victim.has(t, "failed error=CUDA_ERROR_MPS_CLIENT_TERMINATED")
	st := must.Get(m.Status())(t)
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
	must.Do(t, m.MPS("0", "fault", strconv.Itoa(a.cmd.Process.Pid)))
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
	must.Do(t, m.MPS("0", "server-crash"))
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
	must.Do(t, m.MPS("0", "crash"))
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
		must.Do(t, m.MPS("0", fault, value))
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
