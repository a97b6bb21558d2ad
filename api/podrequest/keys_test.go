// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// writers are the packages that may name a key to look something up beside this one, and why.
var writers = map[string]string{
	"api/classes":                      "reads what a GPUClass says",
	"webhook/dialect":                  "writes our annotations and resources in the place of another system's",
	"webhook/guard":                    "adds the node agent to the list of NRI plugins",
	"webhook/podtemplate":              "writes down what was read",
	"allocator/binding":                "writes the placement",
	"allocator/kueue":                  "has Kueue write the Workload on its pods",
	"allocator/scaleup":                "writes what node autoscalers are asked for",
	"cmd/kubectl-vernier/internal/cli": "writes the annotation of a resize",
	"nri-plugin/capacity":              "writes the node's resources",
}

var (
	// keys are the constants and functions of v1alpha1 and of this package that are keys, parsers
	// those functions that read their values.
	keys    = regexp.MustCompile(`^(Annotation|Resource|ClassResource|LabelKueue|LabelCoscheduling)`)
	parsers = regexp.MustCompile(`^Parse(Shares|Placement|Mode|Policy|Burst|QoS|SameGPU|Topology|RDMA|Resize|Advice|ReservedFor)$`)
)

// No other package reads an annotation or a resource of ours.
func TestKeysAreReadHereAlone(t *testing.T) {
	const root = "../.."
	used := map[string]bool{}
	for _, part := range []string{"api", "webhook", "allocator", "nri-plugin", "cmd", "vgpu-limiter"} {
		must.Do(t, filepath.WalkDir(filepath.Join(root, part), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			rel, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil || rel == "api/podrequest" || rel == "api/v1alpha1" {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			for at, what := range reads(file) {
				used[rel] = true
				if writers[rel] == "" {
					t.Errorf("%s reads %s: ask package podrequest for it", set.Position(at), what)
				}
			}
			return nil
		}))
	}
	for name := range writers {
		if !used[name] {
			t.Errorf("%s is in the list and names no key", name)
		}
	}
}

// A key in an error is no reading, one in an index, a comparison or a map is.
func TestReads(t *testing.T) {
	for expr, want := range map[string]int{
		`pod.Annotations[v1alpha1.AnnotationMode]`:                1,
		`pod.GetAnnotations()["vernier.dev/mode"]`:                1,
		`limits[v1alpha1.ResourceCore]`:                           1,
		`annotations[string(v1alpha1.ResourceCore)]`:              1,
		`limits[v1alpha1.ClassResource(name)]`:                    1,
		`key == v1alpha1.AnnotationMode`:                          1,
		`map[string]string{v1alpha1.AnnotationMode: "mig"}`:       1,
		`func() { switch key { case v1alpha1.AnnotationMode: } }`: 1,
		`v1alpha1.ParseQoS(text)`:                                 1,
		`pod.Labels[podrequest.LabelKueue]`:                       1,
		`fmt.Errorf("annotation %s", v1alpha1.AnnotationMode)`:    0,
		`v1alpha1.ParsePercent(text)`:                             0,
		`pod.Annotations[corev1.MirrorPodAnnotationKey]`:          0,
		`other.AnnotationMode == key`:                             0,
		`list[0]`:                                                 0,
	} {
		file := must.Get(parser.ParseFile(token.NewFileSet(), "", "package p\nimport \"vernier.dev/vernier/api/v1alpha1\"\nvar x = "+expr, 0))(t)
		if got := reads(file); len(got) != want {
			t.Errorf("%s: %v, want %d", expr, got, want)
		}
	}
}

// reads are the keys of ours by which a file looks something up, and the calls of parsers.
func reads(file *ast.File) map[token.Pos]string {
	from, found := map[string]bool{"v1alpha1": true, "podrequest": true}, map[token.Pos]string{}
	for _, spec := range file.Imports {
		if spec.Name != nil && spec.Path.Value == `"vernier.dev/vernier/api/v1alpha1"` {
			from[spec.Name.Name] = true
		}
	}
	of := func(e ast.Expr, pattern *regexp.Regexp) (string, bool) {
		s, is := e.(*ast.SelectorExpr)
		if !is || !pattern.MatchString(s.Sel.Name) {
			return "", false
		}
		of, is := s.X.(*ast.Ident)
		return s.Sel.Name, is && from[of.Name]
	}
	key := func(at ast.Expr) {
		ast.Inspect(at, func(n ast.Node) bool {
			switch e := n.(type) {
			case *ast.SelectorExpr:
				if what, is := of(e, keys); is {
					found[e.Pos()] = what
				}
			case *ast.BasicLit:
				if strings.HasPrefix(e.Value, `"vernier.dev/`) {
					found[e.Pos()] = e.Value
				}
			}
			return true
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch e := n.(type) {
		case *ast.IndexExpr:
			key(e.Index)
		case *ast.KeyValueExpr:
			key(e.Key)
		case *ast.CaseClause:
			for _, one := range e.List {
				key(one)
			}
		case *ast.BinaryExpr:
			if e.Op == token.EQL || e.Op == token.NEQ {
				key(e.X)
				key(e.Y)
			}
		case *ast.CallExpr:
			if what, is := of(e.Fun, parsers); is {
				found[e.Pos()] = what
			}
		}
		return true
	})
	return found
}
