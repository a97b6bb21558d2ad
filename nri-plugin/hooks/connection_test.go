// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"testing"

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
