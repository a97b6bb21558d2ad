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

	"vernier.dev/vernier/test/must"
)

// ours are the names that other people see; TestNames finds one that is missing.
var ours = map[string]string{
	"ResourceCore":          string(ResourceCore),
	"ResourceMemPercent":    string(ResourceMemPercent),
	"ResourceMemMiB":        string(ResourceMemMiB),
	"ResourceGPUs":          string(ResourceGPUs),
	"ResourceIdleCore":      string(ResourceIdleCore),
	"ResourceIdleMemMiB":    string(ResourceIdleMemMiB),
	"AnnotationMode":        AnnotationMode,
	"AnnotationPolicy":      AnnotationPolicy,
	"AnnotationTopology":    AnnotationTopology,
	"AnnotationRDMA":        AnnotationRDMA,
	"AnnotationStart":       AnnotationStart,
	"AnnotationResize":      AnnotationResize,
	"AnnotationQoS":         AnnotationQoS,
	"AnnotationBurst":       AnnotationBurst,
	"AnnotationGPUModel":    AnnotationGPUModel,
	"AnnotationGPUUUID":     AnnotationGPUUUID,
	"AnnotationSameGPU":     AnnotationSameGPU,
	"AnnotationAdvice":      AnnotationAdvice,
	"AnnotationReservedFor": AnnotationReservedFor,
	"AnnotationShares":      AnnotationShares,
	"AnnotationPlacement":   AnnotationPlacement,
	"AnnotationDialect":     AnnotationDialect,
	"Gate":                  Gate,
	"LabelInject":           LabelInject,
	"LabelRDMA":             LabelRDMA,
	"LabelGPUNode":          LabelGPUNode,
	"LabelMIGMode":          LabelMIGMode,
	"LabelGPUModel":         LabelGPUModel,
	"LabelGPUCount":         LabelGPUCount,
	"LabelGPUMemMiB":        LabelGPUMemMiB,
	"LabelGPULimit":         LabelGPULimit,
	"LabelMovable":          LabelMovable,
	"CDIKind":               CDIKind,
}

// others are names that belong to other projects, and values.
var others = []string{"AnnotationRequiredPlugins", "AnnotationNVIDIACDIPrefix", "AnnotationCDIPrefix",
	"LabelInjectEnabled", "LabelRDMAEnabled", "LabelPriorityClassPrefix", "LabelPriorityClassEnabled", "LabelGPUNodeTrue", "LabelMovableTrue", "LabelMIGModeEnabled"}

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
	if len(Resources) != 6 {
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
	must.Do(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
	}))
}

func constants(t *testing.T, file string) []string {
	t.Helper()
	parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
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

func TestEnvRuleOf(t *testing.T) {
	for name, want := range map[string]struct{ shared, beside EnvRule }{
		"NVIDIA_VISIBLE_DEVICES":     {EnvDropped, EnvDropped},
		"CUDA_MPS_PIPE_DIRECTORY":    {EnvDropped, EnvPasses},
		"CUDA_MPS_":                  {EnvDropped, EnvPasses},
		"LD_PRELOAD":                 {EnvWarned, EnvPasses},
		"LD_AUDIT":                   {EnvWarned, EnvPasses},
		"VERNIER_SLICE":              {EnvReserved, EnvReserved},
		"NVIDIA_DRIVER_CAPABILITIES": {EnvPasses, EnvPasses},
		"NVIDIA_REQUIRE_CUDA":        {EnvPasses, EnvPasses},
		"CUDA_VISIBLE_DEVICES":       {EnvPasses, EnvPasses},
		"cuda_mps_pipe_directory":    {EnvPasses, EnvPasses},
		"":                           {EnvPasses, EnvPasses},
	} {
		if got := EnvRuleOf(name, true); got != want.shared {
			t.Errorf("%q with a share: %d, want %d", name, got, want.shared)
		}
		if got := EnvRuleOf(name, false); got != want.beside {
			t.Errorf("%q beside a share: %d, want %d", name, got, want.beside)
		}
	}
}

func TestChoosesBeyond(t *testing.T) {
	const a, b, other = "GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"
	for value, want := range map[string]bool{
		"": false, "0": false, "1": false, "0,1": false, " 1 , 0 ": false, "2": true, "0,2": true,
		"-1": false, "NoDevFiles": false, "none": false, "0,-1,7": false, "0,x,7": false,
		a: false, "GPU-b": false, b + "," + a: false, other: true, a + "," + other: true, "GPU-aaaa-11": true,
		"MIG-1": true, "99999999999999999999": true, "-99999999999999999999": false,
		strings.Repeat("0,", 500_000) + "9": true,
	} {
		if got := ChoosesBeyond(value, []string{a, b}, false); got != want {
			t.Errorf("%.40q of two devices: %t, want %t", value, got, want)
		}
	}
	for value, want := range map[string]bool{"0": false, "MIG-1": false, "MIG-1,MIG-2": false, "1": true, other: true} {
		if got := ChoosesBeyond(value, []string{a}, true); got != want {
			t.Errorf("%q of an instance: %t, want %t", value, got, want)
		}
	}
}

// The reference names every reason of an event or of a condition of a pod that the
// code has, and no other. Reasons are constants whose names begin with reason; what
// tells of something is given one, and no text of its own.
func TestReferenceOfEvents(t *testing.T) {
	text := reference(t, "events.md")
	inCode := map[string]bool{}
	for _, part := range []string{"allocator", "nri-plugin", "webhook"} {
		must.Do(t, filepath.WalkDir(filepath.Join("..", "..", part), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for reason, name := range reasons(file) {
				inCode[reason] = true
				if !strings.Contains(text, "`"+reason+"`") {
					t.Errorf("%s: %s is %s, which is not in docs/reference/events.md", path, name, reason)
				}
			}
			for _, text := range loose(file) {
				t.Errorf("%s: %s is a literal: make it a constant whose name begins with reason, and list it in docs/reference/events.md", path, text)
			}
			return nil
		}))
	}
	for _, row := range regexp.MustCompile("(?m)^\\|[^\n]*").FindAllString(text, -1) {
		cells := strings.Split(row, "|")
		of := cells[1] // of an event
		if len(cells) == 6 {
			of = cells[3] // of a condition
		}
		if reason := strings.Trim(of, " `"); strings.Contains(of, "`") && !inCode[reason] {
			t.Errorf("docs/reference/events.md has %s, and the code has not", reason)
		}
	}
	if len(inCode) < 10 {
		t.Errorf("found only %v", inCode)
	}
}

// reasons are the values of a file's constants for them, with the constants' names.
func reasons(file *ast.File) map[string]string {
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		for i, name := range spec.Names {
			if !regexp.MustCompile(`^[rR]eason[A-Z]`).MatchString(name.Name) || i >= len(spec.Values) {
				continue
			}
			if value, is := spec.Values[i].(*ast.BasicLit); is && value.Kind == token.STRING {
				if text, err := strconv.Unquote(value.Value); err == nil {
					found[text] = name.Name
				}
			}
		}
		return true
	})
	return found
}

// loose are the words in CamelCase that a file gives to what writes events.
func loose(file *ast.File) (texts []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is {
			return true
		}
		method, is := call.Fun.(*ast.SelectorExpr)
		if !is || !regexp.MustCompile(`^(tell|Warn|Event|Eventf|AnnotatedEventf)$`).MatchString(method.Sel.Name) {
			return true
		}
		for i, arg := range call.Args {
			// The API's Eventf takes an action behind the reason.
			if method.Sel.Name == "Eventf" && i == 4 {
				continue
			}
			if value, is := arg.(*ast.BasicLit); is && regexp.MustCompile(`^"[A-Z][A-Za-z]+"$`).MatchString(value.Value) {
				texts = append(texts, value.Value)
			}
		}
		return true
	})
	return texts
}
