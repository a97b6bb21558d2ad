// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

func TestBudgets(t *testing.T) {
	all := must.Get(budgets("# of pages\n 3 a.md docs/*/b.md\n\n 2 *\n 9 all\n"))(t)
	spend(all, "a.md", "| two | words |\n|---|---|\n<!-- not\nthese -->\n")
	spend(all, "docs/c/b.md", "one.\n<!-- generated: x -->\nnot this\n<!-- end of what is generated -->\n")
	spend(all, "other/d.md", "`one` & `two` 3\n")
	var out strings.Builder
	kept := table(all, &out)
	want := "     3 of      3  a.md docs/*/b.md\n     3 of      2  *  OVER\n     6 of      9  all\n"
	if kept || out.String() != want {
		t.Errorf("kept: %t, got:\n%swant:\n%s", kept, out.String(), want)
	}
	if _, err := budgets("many *"); err == nil {
		t.Error("a budget without a number was read")
	}
}
