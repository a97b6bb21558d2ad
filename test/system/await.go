// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Await polls until check is satisfied; its last words are the failure's text.
func Await(t testing.TB, patience time.Duration, what string, check func(context.Context) (bool, string)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (ok bool, _ error) {
		ok, last = check(ctx)
		return ok, nil
	})
	if err != nil {
		t.Fatalf("waited in vain: %s\nlast seen: %s", what, last)
	}
}
