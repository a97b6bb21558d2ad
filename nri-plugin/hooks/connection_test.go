// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// Invariant 2: a runtime that would start containers without us is told of at the
// first creation, of whatever container, and one that would not is not.
func TestRuntimeWithoutValidator(t *testing.T) {
	for name, c := range map[string]struct {
		start func(testing.TB) *nritest.Runtime
		want  error
	}{
		"on":  {nritest.Start, nil},
		"off": {nritest.StartUnguarded, ErrNoValidator},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), c.start(t)
			l := connect(t, r, n.Plugin)
			plain := podOf("plain", "")
			must.Get(r.Create(plain, containerOf(plain, "main")))(t)
			if err := l.Err(); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// What keeps the plugin away is told of when it becomes another thing as well: the
// ledger shows it with the remedy. The same again is not.
func TestAnotherReason(t *testing.T) {
	told := 0
	c := &Connection{Plugin: &Plugin{Log: logr.Discard()}, Changed: func(bool) { told++ }}
	for i, err := range []error{errors.New("nobody listens"), errors.New("nobody listens"), errors.New("too old"), nil, nil} {
		c.set(err)
		if want := []int{1, 1, 2, 3, 3}[i]; told != want || !errors.Is(c.Err(), err) {
			t.Errorf("after %v: told %d times, want %d; %v", err, told, want, c.Err())
		}
	}
}

// The runtime may ask about its first container before the session takes itself for
// connected: what it has shown stays, and the connection is told of as one all the same.
func TestUnguardedBeforeConnected(t *testing.T) {
	var came []bool
	c := &Connection{Plugin: &Plugin{Log: logr.Discard()}, Changed: func(now bool) { came = append(came, now) }}
	h := &handler{Plugin: newNode(t).Plugin, connection: c}
	plain := podOf("plain", "")
	validate := func() {
		t.Helper()
		adjust, _, err := h.CreateContainer(t.Context(), plain, containerOf(plain, "main"))
		if err == nil {
			err = h.ValidateContainerAdjustment(t.Context(), &api.ValidateContainerAdjustmentRequest{Pod: plain, Container: containerOf(plain, "main"), Adjust: adjust})
		}
		must.Do(t, err)
	}
	validate()
	if err := c.Err(); !errors.Is(err, ErrConnecting) {
		t.Errorf("before it is connected: %v", err)
	}
	c.set(nil)
	if err := c.Err(); !errors.Is(err, ErrNoValidator) {
		t.Errorf("Invariant 2: %v, want %v", err, ErrNoValidator)
	}
	if validate(); !slices.Equal(came, []bool{false, true}) {
		t.Errorf("told of a connection that came: %v", came)
	}
}

// An operator reads which setting is missing, not which system call failed.
func TestMissingSettings(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	plain := filepath.Join(dir, "plain")
	must.Do(t, os.Mkdir(plain, 0o700))
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
