// SPDX-License-Identifier: Apache-2.0

// Package manifests owns reading the manifests of deploy/manifests, which are the
// chart as rendered with its defaults, and applying them, for the tests and the
// demo: what they install is what a user installs.
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
	"path/filepath"

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

// Read returns the objects in files or folders, relative to deploy/manifests, in order.
func Read(paths ...string) ([]*unstructured.Unstructured, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, p := range paths {
		path := filepath.Join(root, "deploy", "manifests", p)
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
