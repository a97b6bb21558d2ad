// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// Whoever a page says runs its commands is there, what nobody runs has a reason, and
// targets of make that it names exist.
func TestWhoRunsCommands(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	all := must.Get(Commands(root))(t)
	if len(all) < 20 {
		t.Fatalf("only %d blocks were found", len(all))
	}
	makefile := must.Get(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	for _, b := range all {
		if b.RunBy == "" && b.NotRun == "" && strings.Contains(b.Script(), "go test ") {
			t.Errorf("%s:%d: a test would run tests: say above the block who runs it", b.Page, b.Line)
		}
		if b.RunBy != "" {
			file, test, _ := strings.Cut(b.RunBy, " ")
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil || test != "" && !strings.Contains(string(text), "func "+test+"(") {
				t.Errorf("%s:%d: run by %s, which is not there (%v)", b.Page, b.Line, b.RunBy, err)
			}
		}
		for _, target := range regexp.MustCompile(`(?m)^make ([a-z][a-z0-9 -]*)`).FindAllStringSubmatch(b.Script(), -1) {
			for _, name := range strings.Fields(target[1]) {
				if strings.HasPrefix(name, "-") {
					break // make -C: another Makefile
				}
				if !regexp.MustCompile(`(?m)^` + name + `:`).Match(makefile) {
					t.Errorf("%s:%d: there is no `make %s`", b.Page, b.Line, name)
				}
			}
		}
	}
}

func TestCommands(t *testing.T) {
	got := commands("p.md", "text\n```sh\na\n```\n```yaml\nb: 1\n```\n"+
		"<!-- run by x_test.go TestX -->\n  ```console\n  $ c\n  d\n  e…\n  ```\n"+
		"<!-- not run: it is long -->\n```bash\nf\n```\n<!-- not run: no block -->\n\n```\n$ g\n```\n```\nh\n```\n")
	want := []Block{
		{Page: "p.md", Line: 2, Text: "a\n"},
		{Page: "p.md", Line: 9, Text: "$ c\nd\ne…\n", Session: true, RunBy: "x_test.go TestX"},
		{Page: "p.md", Line: 15, Text: "f\n", NotRun: "it is long"},
		{Page: "p.md", Line: 20, Text: "$ g\n", Session: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	if got[1].Script() != "c\n" || !reflect.DeepEqual(got[1].Printed(), []string{"d"}) {
		t.Errorf("%q, %q", got[1].Script(), got[1].Printed())
	}
}

// Targets of make that sentences name exist as well.
func TestTargets(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	named, err := Mentions(root, "make ")
	if err != nil || len(named) < 10 {
		t.Fatalf("%d targets are named, %v", len(named), err)
	}
	for _, m := range named {
		target := strings.Fields(m.Text)[1]
		folder := "."
		if target == "-C" {
			folder, target = strings.Fields(m.Text)[2], strings.Fields(m.Text)[3]
		}
		makefile, err := os.ReadFile(filepath.Join(root, folder, "Makefile"))
		if err != nil || !regexp.MustCompile(`(?m)^`+target+`:`).Match(makefile) {
			t.Errorf("%s:%d: there is no `%s` (%v)", m.Page, m.Line, m.Text, err)
		}
	}
}

func TestPrints(t *testing.T) {
	const printed = "POD       NODE    MEM(MiB)   STATE\ninfer-a   gpu-1   10         attached\ninfer-b   gpu-1   10         attached\n"
	for shown, want := range map[string]bool{
		"":                                   true,
		"POD   NODE   …   STATE":             true, // a column that is left out
		"infer-…   gpu-1   10":               true,
		"infer-… gpu-1 10\ninfer-… gpu-1 10": true,
		"infer-… gpu-1 10\ninfer-… gpu-1 10\ninfer-… gpu-1 10": false, // a line too few
		"…\ninfer-a gpu-1\n…":                                  true,  // lines that are left out
		"…\ninfer-c gpu-1\n…":                                  false,
		"gpu-1 infer-a":                                        false,
		"infer-a gpu-1 1":                                      false,
	} {
		if got := Prints(printed, shown); got != want {
			t.Errorf("%q: %v", shown, got)
		}
	}
}
