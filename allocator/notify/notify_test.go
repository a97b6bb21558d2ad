// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A text that is longer than an event may be is cut, and is one still.
func TestNoteIsBounded(t *testing.T) {
	for n := range 8 {
		whole := strings.Repeat("x", n) + strings.Repeat("è", 510)
		got := note(whole)
		if len(got) > 1024 || !utf8.ValidString(got) || (got == whole) != (len(whole) <= 1024) {
			t.Errorf("%d bytes become %d, valid: %v", len(whole), len(got), utf8.ValidString(got))
		}
		if cut, short := strings.CutSuffix(got, "..."); short && (!strings.HasPrefix(whole, cut) || len(cut) < 1019) {
			t.Errorf("of %d bytes %d are left: %q", len(whole), len(cut), got)
		}
	}
}
