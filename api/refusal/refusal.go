// SPDX-License-Identifier: Apache-2.0

// Package refusal says which answers of the API server are refusals: of an admission policy, a
// webhook that is away, a rule of a CRD. The next try fares the same until somebody changes
// something.
package refusal

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Is reports whether the error is a refusal: an answer that depends neither on earlier writes
// nor on the load of the API server.
func Is(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	switch apierrors.ReasonForError(err) {
	case "Conflict", "NotFound", "AlreadyExists", "Gone", "Expired", "TooManyRequests", "ServiceUnavailable", "ServerTimeout", "Timeout":
		return false
	}
	return true
}
