// SPDX-License-Identifier: Apache-2.0

// Package must ends or fails a test at an error that the test is not about. It keeps no state.
package must

import (
	"context"
	"testing"
)

// Do ends the test if there is an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Report fails the test if there is an error, and goes on.
func Report(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Get takes what a call returns. Applied to the test it is the call's value, or ends the
// test with its error: must.Get(os.ReadFile(path))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// Run runs beside the test, until it ends, and reports its error.
func Run(t testing.TB, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		Report(t, <-ended)
	})
}
