// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ours are the names that other people see; TestNames finds one that is missing.
var ours = map[string]string{
	"ResourceCore":        string(ResourceCore),
	"ResourceMemPercent":  string(ResourceMemPercent),
	"ResourceMemMiB":      string(ResourceMemMiB),
	"ResourceGPUs":        string(ResourceGPUs),
	"AnnotationMode":      AnnotationMode,
	"AnnotationPolicy":    AnnotationPolicy,
	"AnnotationTopology":  AnnotationTopology,
	"AnnotationRDMA":      AnnotationRDMA,
	"AnnotationQoS":       AnnotationQoS,
	"AnnotationBurst":     AnnotationBurst,
	"AnnotationGPUModel":  AnnotationGPUModel,
	"AnnotationGPUUUID":   AnnotationGPUUUID,
	"AnnotationSameGPU":   AnnotationSameGPU,
	"AnnotationShares":    AnnotationShares,
	"AnnotationPlacement": AnnotationPlacement,
	"AnnotationDialect":   AnnotationDialect,
	"Gate":                Gate,
	"LabelInject":         LabelInject,
	"LabelRDMA":           LabelRDMA,
	"LabelGPUNode":        LabelGPUNode,
	"LabelMIGMode":        LabelMIGMode,
	"CDIKind":             CDIKind,
}

// others are names that belong to other projects, and values.
var others = []string{"AnnotationRequiredPlugins", "AnnotationNVIDIACDIPrefix", "AnnotationCDIPrefix",
	"LabelInjectEnabled", "LabelRDMAEnabled", "LabelPriorityClassPrefix", "LabelPriorityClassEnabled", "LabelGPUNodeTrue", "LabelMIGModeEnabled"}

// Every name of ours starts with the prefix by which the webhook's match
// conditions tell our pods from everybody else's, and Kubernetes accepts it.
func TestNames(t *testing.T) {
	for id, name := range ours {
		if !strings.HasPrefix(name, Prefix) {
			t.Errorf("%s is %q: it does not start with %q", id, name, Prefix)
		}
		if errs := validation.IsQualifiedName(name); len(errs) > 0 {
			t.Errorf("%s is %q: %v", id, name, errs)
		}
	}
	named := regexp.MustCompile(`^(Resource|Annotation|Label|Gate)`)
	for _, id := range constants(t, "names.go") {
		if named.MatchString(id) && ours[id] == "" && !slices.Contains(others, id) {
			t.Errorf("constant %s is not in this test's list", id)
		}
	}
}

func TestResourcesIsComplete(t *testing.T) {
	for id, name := range ours {
		if strings.HasPrefix(id, "Resource") && !slices.Contains(Resources, corev1.ResourceName(name)) {
			t.Errorf("Resources lacks %s", id)
		}
	}
	if len(Resources) != 4 {
		t.Errorf("Resources has %d entries: some twice?", len(Resources))
	}
}

// Nobody else spells a name: a name that is spelled twice is changed once.
func TestNamesAreSpelledHereOnly(t *testing.T) {
	names := make(map[string]string)
	for id, name := range ours {
		names[name] = id
	}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == filepath.Join(root, "api") || path == filepath.Join(root, "bin") ||
			len(d.Name()) > 2 && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && names[text] != "" {
					t.Errorf("%s spells %q: use v1alpha1.%s", path, text, names[text])
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func constants(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range parsed.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				for _, id := range s.(*ast.ValueSpec).Names {
					ids = append(ids, id.Name)
				}
			}
		}
	}
	return ids
}
