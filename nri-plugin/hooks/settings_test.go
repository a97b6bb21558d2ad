// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/nritest"
)

// An operator reads which setting is missing, not which system call failed.
func TestMissingSettings(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	plain := filepath.Join(dir, "plain")
	if err := os.Mkdir(plain, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		socket string
		says   []string
	}{
		"NRI off":       {filepath.Join(dir, "none.sock"), []string{"none.sock does not exist", "disable = false", "io.containerd.nri.v1.nri", "--nri-socket"}},
		"nobody there":  {left, []string{"nobody listens at " + left, "containerd is stopped", "disable_connections = false"}},
		"not reachable": {filepath.Join(plain, strings.Repeat("x", 200)), []string{"invalid argument", "see that containerd runs with NRI"}},
		"too old":       {nritest.StartVersion(t, "v2.1.8").Socket, []string{"containerd v2.1.8", "no default validator", "update containerd to 2.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			connected, err := (&Connection{Socket: c.socket, Plugin: n.Plugin}).session(t.Context())
			if err == nil || connected {
				t.Fatalf("connected %v, %v", connected, err)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v\nwant %q", err, part)
				}
			}
		})
	}
}

func TestSupported(t *testing.T) {
	for version, ok := range map[string]bool{
		"1.7.27": false, "v2.0.0": false, "2.1.8": false, "v2.2.0": true, "2.10.0-rc.1": true, "3.0.0": true, "": true, "module": true,
	} {
		if err := supported("containerd", version); (err == nil) != ok {
			t.Errorf("%s: %v", version, err)
		}
	}
	if err := supported("other", "1.0.0"); err != nil {
		t.Errorf("another runtime's versions mean something else: %v", err)
	}
}
