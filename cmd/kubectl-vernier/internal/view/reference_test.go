// SPDX-License-Identifier: Apache-2.0

package view

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/test/must"
)

// TestReference: docs/reference/kubectl-vernier.md names exactly the fields that
// are printed, and marks those that may be absent.
func TestReference(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "reference", "kubectl-vernier.md")))(t)
	for kind, item := range map[string]any{
		KindNodes: model.Node{}, KindDevices: model.Device{}, KindSlices: model.Slice{}, KindWaiting: model.WaitingPod{},
		KindExplained: ExplainedPod{}, KindFragments: Fragment{}, KindFits: Fitted{}, KindReasons: Reasoned{}, KindUses: model.Use{}, KindClasses: Class{}, KindChecks: Check{}, KindUsage: UsageRow{}, KindAdvice: AdviceRow{}, KindTides: Tide{},
	} {
		_, row, _ := strings.Cut(string(text), "| `"+kind+"` | ")
		row, _, _ = strings.Cut(row, " |\n")
		want := fields(reflect.TypeOf(item), "", false)
		if got := strings.Split(row, ", "); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ndocumented %v\nprinted    %v", kind, got, want)
		}
	}
	if !strings.Contains(string(text), "`"+APIVersion+"`") {
		t.Errorf("%s is not documented", APIVersion)
	}
}

// fields are the JSON paths of a type, as the reference writes them.
func fields(t reflect.Type, path string, absent bool) []string {
	switch {
	case t.Kind() == reflect.Pointer:
		return fields(t.Elem(), path, absent)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return fields(t.Elem(), path+"[]", absent)
	case t.Kind() != reflect.Struct || t.ConvertibleTo(reflect.TypeFor[struct{ time.Time }]()):
		if absent {
			return []string{"`" + path + "`\\*"}
		}
		return []string{"`" + path + "`"}
	}
	var all []string
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			continue
		}
		if t.Field(i).Anonymous {
			all = append(all, fields(t.Field(i).Type, path, absent)...)
			continue
		}
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if path != "" {
			name = path + "." + name
		}
		all = append(all, fields(t.Field(i).Type, name, absent || options == "omitempty")...)
	}
	return all
}
