// SPDX-License-Identifier: Apache-2.0

// Package manifest owns finding the pods in manifests: those that stand there, and
// the templates of whatever makes pods, of which it needs to know no kind.
//
// It never judges what it finds.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

// Pod is a pod, or what pods will be made from.
type Pod struct {
	// Object that it stands in, as KIND/NAME, and its namespace.
	Object, Namespace string
	// Path of the template in the object; empty for a pod.
	Path string
	// JSON of its metadata and spec.
	JSON []byte
	// Unknown says which of its fields no pod has, for the kinds that Kubernetes
	// itself makes pods of.
	Unknown []string

	// native: the object's kind is Kubernetes' own.
	native bool
}

// Read finds the pods of all documents, YAML or JSON, in their order.
func Read(from io.Reader) ([]Pod, error) {
	var pods []Pod
	decoder := yaml.NewYAMLOrJSONDecoder(from, 4096)
	for n := 1; ; n++ {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return pods, nil
		} else if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(raw) == 0 {
			// Nothing but comments between two lines of ---.
			continue
		}
		var document any
		// Amounts stay as they are written: no float comes between.
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &document); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		found, err := walk(document, Pod{Object: fmt.Sprintf("document %d", n)})
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		pods = append(pods, found...)
	}
}

// walk looks for what has a spec with containers, at any depth: so it finds the
// pods of a CronJob, a List, and kinds of which nobody has heard here.
func walk(value any, at Pod) ([]Pod, error) {
	var pods []Pod
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			found, err := walk(item, at.at(fmt.Sprintf("%s[%d]", at.Path, i)))
			if err != nil {
				return nil, err
			}
			pods = append(pods, found...)
		}
	case map[string]any:
		at = named(v, at)
		if spec, ok := v["spec"].(map[string]any); ok {
			if _, ok := spec["containers"].([]any); ok {
				var err error
				at.JSON, err = json.Marshal(map[string]any{"metadata": orEmpty(v["metadata"]), "spec": spec})
				if at.native && err == nil {
					at.Unknown = unknown(at.JSON)
				}
				return []Pod{at}, err
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			path := key
			if at.Path != "" {
				path = at.Path + "." + key
			}
			found, err := walk(v[key], at.at(path))
			if err != nil {
				return nil, err
			}
			pods = append(pods, found...)
		}
	}
	return pods, nil
}

// named is the object that a map begins, where it begins one.
func named(v map[string]any, at Pod) Pod {
	kind, isKind := v["kind"].(string)
	version, versioned := v["apiVersion"].(string)
	if !isKind || !versioned {
		return at
	}
	metadata, _ := v["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if generated, ok := metadata["generateName"].(string); ok && name == "" {
		name = generated + "*"
	}
	namespace, _ := metadata["namespace"].(string)
	native := slices.Contains([]string{"v1", "apps/v1", "batch/v1"}, version)
	return Pod{Object: kind + "/" + name, Namespace: namespace, native: native}
}

// at is the same object, further in.
func (p Pod) at(path string) Pod {
	p.Path = path
	return p
}

// unknown are the fields that a pod does not have, misspelt ones as a rule.
func unknown(raw []byte) []string {
	// What else is wrong with it the webhook's own reading says.
	strict, _ := kjson.UnmarshalStrict(raw, &corev1.Pod{}, kjson.DisallowUnknownFields)
	var fields []string
	for _, err := range strict {
		if f, ok := errors.AsType[kjson.FieldError](err); ok {
			fields = append(fields, f.FieldPath())
		}
	}
	return fields
}

// orEmpty: a template may have no metadata, a pod always has some.
func orEmpty(metadata any) any {
	if metadata == nil {
		return map[string]any{}
	}
	return metadata
}
