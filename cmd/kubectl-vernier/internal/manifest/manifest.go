// SPDX-License-Identifier: Apache-2.0

// Package manifest owns finding the pods in manifests: those that stand there, and
// the templates of workloads of any kind.
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"

	"vernier.dev/vernier/api/v1alpha1"
)

// Pod is a pod, or what pods will be made from.
type Pod struct {
	// Object that it stands in, as KIND/NAME, and its namespace.
	Object, Namespace string
	// Path of the template in the object; empty for a pod.
	Path string
	// File that it was read from; empty for standard input. The reader of files sets it.
	File string
	// Copies that the object makes of it at a time: by the counts that stand beside its
	// template, 1 where there are none.
	Copies int
	// JSON of its metadata and spec.
	JSON []byte
	// Owner is what it is a template of, the same for all templates; nil for a pod.
	Owner *Owner
	// Unknown says which of its fields no pod has, for the kinds that Kubernetes
	// itself makes pods of.
	Unknown []string

	// Native: the object's kind is Kubernetes' own, so that its annotations do not become its pods'.
	Native bool
	// within is the object that begins around it.
	within *Owner
}

// Owner is an object that pods are made from.
type Owner struct{ fields map[string]any }

// Annotations of the object itself.
func (o *Owner) Annotations() map[string]string {
	metadata, _ := o.fields["metadata"].(map[string]any)
	written, _ := metadata["annotations"].(map[string]any)
	all := map[string]string{}
	for key, value := range written {
		all[key] = fmt.Sprint(value)
	}
	return all
}

// JSON of the whole object.
func (o *Owner) JSON() ([]byte, error) { return json.Marshal(o.fields) }

// Group is a PodGroup: pods that start together.
type Group struct {
	Namespace, Name string
	// Min is how many of them must start together.
	Min int
}

// Contents are the pods, PodGroups and GPUClasses of manifests.
type Contents struct {
	Pods    []Pod
	Groups  []Group
	Classes []v1alpha1.GPUClass
}

// Add takes in what was read from a file; empty is standard input.
func (c *Contents) Add(file string, read Contents) {
	for _, p := range read.Pods {
		p.File = file
		c.Pods = append(c.Pods, p)
	}
	c.Groups = append(c.Groups, read.Groups...)
	c.Classes = append(c.Classes, read.Classes...)
}

// Read finds the pods, PodGroups and GPUClasses of all documents, YAML or JSON, in their order.
func Read(from io.Reader) (Contents, error) {
	var all Contents
	decoder := yaml.NewYAMLOrJSONDecoder(from, 4096)
	for n := 1; ; n++ {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return Contents{}, fmt.Errorf("document %d: %w", n, err)
		}
		if len(raw) == 0 {
			// Nothing but comments between two lines of ---.
			continue
		}
		var document any
		// Amounts stay as they are written: no float comes between.
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &document); err != nil {
			return Contents{}, fmt.Errorf("document %d: %w", n, err)
		}
		if err := all.walk(document, Pod{Object: fmt.Sprintf("document %d", n), Copies: 1}); err != nil {
			return Contents{}, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// walk looks for what has a spec with containers, at any depth: so it finds the
// pods of a CronJob, a List, and kinds of which nobody has heard here.
func (c *Contents) walk(value any, at Pod) error {
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			if err := c.walk(item, at.at(fmt.Sprintf("%s[%d]", at.Path, i))); err != nil {
				return err
			}
		}
	case map[string]any:
		at = named(v, at)
		if v["kind"] == "PodGroup" {
			c.Groups = append(c.Groups, GroupOf(v))
		}
		if class := (v1alpha1.GPUClass{}); v["kind"] == "GPUClass" && v["apiVersion"] == v1alpha1.SchemeGroupVersion.String() {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(v, &class); err != nil {
				return fmt.Errorf("GPUClass: %w", err)
			}
			c.Classes = append(c.Classes, class)
		}
		if spec, ok := v["spec"].(map[string]any); ok {
			if _, ok := spec["containers"].([]any); ok {
				var err error
				at.JSON, err = json.Marshal(map[string]any{"metadata": made(v["metadata"], at), "spec": spec})
				if at.Native && err == nil {
					at.Unknown = unknown(at.JSON)
				}
				if at.Path != "" {
					at.Owner = at.within
				}
				c.Pods = append(c.Pods, at)
				return err
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			path := key
			if at.Path != "" {
				path = at.Path + "." + key
			}
			next := at.at(path)
			if key == "template" {
				next.Copies = min(next.Copies*copies(v), maxCopies)
			}
			if err := c.walk(v[key], next); err != nil {
				return err
			}
		}
	}
	return nil
}

// made is the metadata of a pod. One of a template is made by a controller, which it will name as its owner.
func made(metadata any, at Pod) any {
	if at.Path == "" {
		return orEmpty(metadata)
	}
	owner := map[string]any{"apiVersion": "apps/v1", "kind": "Controller", "name": "fit", "uid": "fit", "controller": true} // none is empty: the API server looks
	with := map[string]any{"ownerReferences": []any{owner}}
	if has, ok := metadata.(map[string]any); ok {
		maps.Copy(with, has)
	}
	return with
}

// maxCopies keeps products of counts in range; nobody makes so many pods.
const maxCopies = 1 << 20

// copies is how many objects are made at a time of the template that stands in v: replicas,
// as in Deployments and the jobs of Volcano and Kubeflow, or a Job's parallelism, of which
// no more run than have still to complete.
func copies(v map[string]any) int {
	for _, field := range []string{"replicas", "parallelism"} {
		if n, ok := v[field].(int64); ok && n >= 0 {
			if completions, ok := v["completions"].(int64); ok && field == "parallelism" {
				n = min(n, completions)
			}
			return int(min(n, maxCopies))
		}
	}
	return 1
}

// GroupOf reads a PodGroup of Kubernetes, of the coscheduling plugin or of Volcano.
func GroupOf(v map[string]any) Group {
	u := unstructured.Unstructured{Object: v}
	g := Group{Namespace: u.GetNamespace(), Name: u.GetName(), Min: 1}
	for _, path := range [][]string{{"spec", "minMember"}, {"spec", "schedulingPolicy", "gang", "minCount"}} {
		if n, ok, err := unstructured.NestedInt64(v, path...); ok && err == nil {
			g.Min = int(n)
		}
	}
	return g
}

// named is the object that a map begins, where it begins one.
func named(v map[string]any, at Pod) Pod {
	u := unstructured.Unstructured{Object: v}
	if u.GetKind() == "" || u.GetAPIVersion() == "" {
		return at
	}
	name := u.GetName()
	if name == "" && u.GetGenerateName() != "" {
		name = u.GetGenerateName() + "*"
	}
	native := slices.Contains([]string{"v1", "apps/v1", "batch/v1"}, u.GetAPIVersion())
	return Pod{Object: u.GetKind() + "/" + name, Namespace: u.GetNamespace(), Copies: at.Copies, Native: native, within: &Owner{v}}
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
