// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// The reference names everything that a user meets, and its documents are ones
// that we would take.
func TestReferenceOfAnnotations(t *testing.T) {
	text := reference(t, "annotations.md")
	for id, name := range ours {
		if id != "CDIKind" && !strings.Contains(text, name) {
			t.Errorf("%s (%s) is not in docs/reference/annotations.md", name, id)
		}
	}
	read := 0
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)\n```").FindAllStringSubmatch(text, -1) {
		_, shares := ParseShares(block[1])
		_, placement := ParsePlacement(block[1])
		if shares != nil && placement != nil {
			t.Errorf("neither a Shares (%v) nor a Placement (%v):\n%s", shares, placement, block[1])
		}
		read++
	}
	if read != 2 {
		t.Errorf("%d documents in the reference, want one of each kind", read)
	}
	for _, doc := range []any{Share{}, PlacedShare{}, PlacedDevice{}} {
		for _, field := range jsonFields(reflect.TypeOf(doc)) {
			if !regexp.MustCompile(`\b` + field + `\b`).MatchString(text) {
				t.Errorf("field %s of %T is not in docs/reference/annotations.md", field, doc)
			}
		}
	}
}

// The fields are generated; the words that stand in some of them are not.
func TestReferenceOfLedger(t *testing.T) {
	text := reference(t, "ledger.md")
	for _, g := range []Guarantee{GuaranteeDevice, GuaranteeHardware, GuaranteeDriver, GuaranteeCooperative, GuaranteeNone} {
		if !strings.Contains(text, string(g)) {
			t.Errorf("guarantee %s is not in docs/reference/ledger.md", g)
		}
	}
}

func reference(t *testing.T, file string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "reference", file)))(t)
	return string(text)
}

func jsonFields(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
