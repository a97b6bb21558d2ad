// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"testing"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/nritest"
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
	c := &Connection{Plugin: &Plugin{Log: logr.Discard()}, Changed: func() { told++ }}
	for i, err := range []error{errors.New("nobody listens"), errors.New("nobody listens"), errors.New("too old"), nil, nil, ErrNoValidator} {
		c.set(err)
		if want := []int{1, 1, 2, 3, 3, 4}[i]; told != want || !errors.Is(c.Err(), err) {
			t.Errorf("after %v: told %d times, want %d; %v", err, told, want, c.Err())
		}
	}
}
