// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

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
			if _, err := r.Create(plain, containerOf(plain, "main")); err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
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
