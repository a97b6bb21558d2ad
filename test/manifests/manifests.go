// SPDX-License-Identifier: Apache-2.0

// Package manifests owns reading the manifests of deploy/manifests, which are the
// chart as rendered with its defaults, or of the chart as rendered with other values, and
// applying them, for the tests and the demo: what they install is what a user installs.
//
// It never changes a manifest.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Root is the repository's folder, the first at or above the
// working directory: tests run in their package's folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "manifests")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no deploy/manifests in %s or above: run in the repository", start)
		}
	}
}

// Folder is a folder of rendered manifests; empty is deploy/manifests.
type Folder string

// Render renders the chart into a folder, which it replaces, with values as Helm's --set takes
// them.
func Render(ctx context.Context, folder string, values ...string) (Folder, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	args := []string{folder}
	for _, v := range values {
		args = append(args, "--set="+v)
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "deploy", "render.sh"), args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("rendering the chart: %w\n%s", err, out)
	}
	return Folder(folder), nil
}

// Read returns the objects in files or folders, relative to deploy/manifests, in order.
func Read(paths ...string) ([]*unstructured.Unstructured, error) { return Folder("").Read(paths...) }

// Read returns the objects in files or folders below it, in order.
func (f Folder) Read(paths ...string) ([]*unstructured.Unstructured, error) {
	if f == "" {
		root, err := Root()
		if err != nil {
			return nil, err
		}
		f = Folder(filepath.Join(root, "deploy", "manifests"))
	}
	var objects []*unstructured.Unstructured
	for _, p := range paths {
		path := filepath.Join(string(f), p)
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			files, _ = filepath.Glob(filepath.Join(path, "*.yaml"))
		}
		for _, file := range files {
			more, err := read(file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			objects = append(objects, more...)
		}
	}
	return objects, nil
}

// Flags are the ones that a part's program has in this folder and not in deploy/manifests: what
// the values have changed. The part is webhook, allocator or node.
func (f Folder) Flags(part string) ([]string, error) {
	flags, err := f.args(part)
	if err != nil {
		return nil, err
	}
	usual, err := Folder("").args(part)
	return slices.DeleteFunc(flags, func(flag string) bool { return slices.Contains(usual, flag) }), err
}

func (f Folder) args(part string) ([]string, error) {
	objects, err := f.Read(part + ".yaml")
	if err != nil {
		return nil, err
	}
	for _, obj := range objects {
		containers, _, err := unstructured.NestedSlice(obj.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return nil, err
		}
		if len(containers) > 0 {
			args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			return args, err
		}
	}
	return nil, fmt.Errorf("%s.yaml has no container", part)
}

func read(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Parse returns the objects in a text of several documents, in order.
func Parse(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		obj := &unstructured.Unstructured{}
		switch err := dec.Decode(obj); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(obj.Object) > 0:
			objects = append(objects, obj)
		}
	}
}

// Apply applies objects by server-side apply, as `kubectl apply --server-side`
// does.
func Apply(ctx context.Context, c client.Client, objects ...*unstructured.Unstructured) error {
	for _, obj := range objects {
		obj = obj.DeepCopy() // the server's answer is written into it
		err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
	}
	return nil
}
