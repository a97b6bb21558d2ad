// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestIs(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":               {nil, false},
		"no answer":             {errors.New("connection refused"), false},
		"no time":               {context.DeadlineExceeded, false},
		"a policy":              {apierrors.NewForbidden(pods, "p", errors.New("no")), true},
		"wrapped":               {fmt.Errorf("writing: %w", apierrors.NewForbidden(pods, "p", errors.New("no"))), true},
		"a rule of a CRD":       {apierrors.NewInvalid(schema.GroupKind{Kind: "SliceLedger"}, "n", nil), true},
		"a webhook that hangs":  {apierrors.NewInternalError(errors.New("failed calling webhook: context deadline exceeded")), true},
		"a policy's own reason": {apierrors.NewUnauthorized("no"), true},
		"another has written":   {apierrors.NewConflict(pods, "p", errors.New("changed")), false},
		"gone":                  {apierrors.NewNotFound(pods, "p"), false},
		"busy":                  {apierrors.NewTooManyRequests("later", 1), false},
		"slow":                  {apierrors.NewTimeoutError("slow", 1), false},
	} {
		if got := Is(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
