// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/cluster/image"
	"vernier.dev/vernier/test/gpu/report"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// kit is the folder of `make gpu-kit`.
func kit(t *testing.T) string {
	t.Helper()
	root := must.Get(manifests.Root())(t)
	return filepath.Join(root, "bin", "gpu-kit")
}

// nativeEnv lets programs outside the cluster use the node's GPUs.
func nativeEnv() []string {
	env := append(os.Environ(), sys.Node(small).GPU.Env()...)
	if *card == simulatedCard {
		env = append(env, "SIMGPU_ALL_DEVICES=1", "LD_LIBRARY_PATH="+sys.Node(small).GPU.Bin)
	}
	return env
}

// runKit runs rows of the kit, with pods for shares, and returns them as they ended. Beside it,
// what is given runs.
func runKit(t *testing.T, beside func(), rows ...string) []*report.Row {
	t.Helper()
	image, path, folders := kitImage(t)
	file := filepath.Join(t.TempDir(), "report.json")
	args := []string{"--report=" + file, "--only=" + strings.Join(rows, ","), "--shares=" + filepath.Join(kit(t), "pod-run")}
	if *card == simulatedCard {
		args = append(args, "--simulated")
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(kit(t), "gpu-kit"), args...)
	cmd.Env = append(nativeEnv(), "PATH="+sys.Path()+":"+os.Getenv("PATH"), "KUBECONFIG="+sys.Cluster.Kubeconfig(),
		"POD_NAMESPACE="+namespace, "POD_IMAGE="+image, "POD_PATH="+path, "POD_FOLDERS="+strings.Join(folders, " "))
	t.Cleanup(func() { removeKitPods(t) })
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	must.Do(t, cmd.Start())
	if beside != nil {
		beside()
	}
	_ = cmd.Wait() // its report says more
	text, err := os.ReadFile(file)
	var rep report.Report[json.RawMessage]
	if err == nil {
		err = json.Unmarshal(text, &rep)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	if rep.Rows[0].Verdict != report.Passed || len(rep.Rows) != 1+len(rows) {
		t.Fatalf("the kit ran\n%s", said.String())
	}
	return rep.Rows[1:] // without its facts of the machine
}

// removeKitPods removes what a row that was killed has left.
func removeKitPods(t *testing.T) {
	list, err := sys.Kube.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app=kit"})
	if err != nil {
		t.Error(err)
		return
	}
	for _, p := range list.Items {
		remove(t, &p)
	}
}

// kitImage puts an image on the node that has the kit's programs where the machine has them,
// and the machine's Python, if that has PyTorch. Its PATH, and folders that it needs of the
// machine, are the pod's to add.
func kitImage(t *testing.T) (name, path string, folders []string) {
	t.Helper()
	name, path = "vernier.local/kit:1", "/usr/local/bin:/usr/bin:/bin:/usr/local/nvidia/bin"
	m, err := cluster.Busybox(name)
	if err == nil {
		err = errors.Join(m.AddCLibrary(), m.AddProgram(filepath.Join(kit(t), "kit-program"), filepath.Join(kit(t), "kit-program")))
	}
	must.Do(t, err)
	must.Do(t, filepath.WalkDir(kit(t), func(file string, e fs.DirEntry, err error) error {
		if ext := filepath.Ext(file); err == nil && (ext == ".ptx" || ext == ".py") {
			err = m.AddFile(file, file)
		}
		return err
	}))
	// Without PyTorch the kit skips its rows; without a Python that pods can have, they fail alone.
	python, err := findPython(t.Context())
	if err == nil {
		err = python.addTo(m)
	}
	if err == nil {
		path, folders = filepath.Dir(python.Program)+":"+path, python.Folders
	} else {
		figure(t, "python", err)
	}
	must.Do(t, sys.AddImage(t.Context(), m))
	return name, path, folders
}

// findPython finds a Python with PyTorch, unless pods may not mount where that is.
func findPython(ctx context.Context) (*python, error) {
	out, err := exec.CommandContext(ctx, "python3", "-c", pythonFolders).Output()
	if err != nil {
		return nil, fmt.Errorf("no python3 with PyTorch: %w", err)
	}
	p := &python{}
	if err := json.Unmarshal(out, p); err != nil {
		return nil, err
	}
	for _, folder := range p.Folders {
		for _, closed := range []string{"/root", "/usr", "/etc", "/var", "/home"} {
			if strings.HasPrefix(folder, closed+"/") {
				return nil, fmt.Errorf("PyTorch is in %s, which pods with a share may not mount", folder)
			}
		}
	}
	return p, nil
}

// python is where the machine's Python is.
type python struct {
	Program string   // as it is called
	Library []string // folders of its own modules
	Folders []string // folders with what was installed: pods mount them
	Code    []string // modules in machine code, whose libraries may lie elsewhere
}

const pythonFolders = `
import glob, importlib.util, json, os, sys, sysconfig
if not importlib.util.find_spec("torch"):
    sys.exit("no PyTorch")
paths = sysconfig.get_paths()
installed = [sys.prefix] if sys.prefix != sys.base_prefix else [paths["purelib"], paths["platlib"]]
library = {paths["stdlib"]}  # of a virtual environment, that of the Python below it
if sys.prefix == sys.base_prefix:
    library.add(paths["platstdlib"])
code = [so for top in library for so in glob.glob(top + "/lib-dynload/*.so")]
for top in {paths["purelib"], paths["platlib"]}:
    code += glob.glob(top + "/torch/lib/*.so") + glob.glob(top + "/numpy/**/*.so", recursive=True)
print(json.dumps({"Program": sys.executable, "Library": sorted(library),
                  "Folders": sorted(set(installed)), "Code": code}))
`

// addTo puts Python and its own modules into an image, where the machine has them.
func (p *python) addTo(m *image.Image) error {
	program := p.Program
	for {
		to, err := os.Readlink(program)
		if err != nil {
			break
		}
		m.Link(program, to)
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(program), to)
		}
		program = to
	}
	err := errors.Join(m.AddProgram(program, program), m.AddLibraries(p.Code...))
	for _, library := range p.Library {
		err = errors.Join(err, filepath.WalkDir(library, func(file string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && slices.Contains([]string{"site-packages", "dist-packages", "test", "__pycache__"}, e.Name()):
				return fs.SkipDir
			case e.Type().IsRegular():
				return m.AddFile(file, file)
			}
			return nil
		}))
	}
	return err
}
