// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/simgpu"
)

// A client that says anything to its daemon, comes again and again and writes where the real
// one would log: its neighbour computes, the daemon is the same, and its logs stay short.
func TestHostileMPSClient(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { hostileClient(t, newNode(t, driver)) })
	}
}

func hostileClient(t *testing.T, n *node) {
	c, neighbour := n.grant("a", 30, 1000), n.grant("b", 50, 2000)
	n.allocates(c, 1000)
	s, _ := n.server(n.uuid())
	space, _ := s.space(c, limitsOf(c.Grants[0]))
	own := n.files.clients(n.uuid(), space)
	before := n.processes()

	said := [][]byte{nil, {0}, bytes.Repeat([]byte{0xff}, 64<<10)}
	if n.protocol(n.uuid()) == legacyProtocol { // in the other root of the node commands, as this test is (docs/concepts/guarantees.md)
		said = append(said, []byte("quit -t 0\n"), []byte("set_default_active_thread_percentage 1\n"))
	}
	for _, text := range said {
		for range 50 {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(own, "control")})
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Send(fd, text, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // it may hang up
			if err := unix.Close(fd); err != nil {
				t.Fatal(err)
			}
		}
	}
	if at, err := os.Readlink(filepath.Join(own, "log")); at != os.DevNull && n.protocol(n.uuid()) == legacyProtocol {
		t.Errorf("what it finds in place of the daemon's pipe for logs: %q, %v", at, err)
	}

	log := filepath.Join(n.files.folder(n.uuid()), "log", "daemon.log")
	f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, maxLog+1)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Look(time.Now()); err != nil {
		t.Error(err)
	}
	n.allocates(neighbour, 2000)
	if info, err := os.Stat(log); err != nil || info.Size() > maxLog {
		t.Errorf("its log: %v, %v", info, err)
	}
	if now := n.processes(); len(now) != len(before) || now[0] != before[0] || now[1] != before[1] || len(n.told) > 0 {
		t.Errorf("processes %+v, before %+v; the pods were told %q", now, before, n.told)
	}
}
