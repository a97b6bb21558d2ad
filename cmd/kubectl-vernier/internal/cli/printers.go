// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/cmd/get"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// printer is kubectl's for the formats that are neither tables nor whole documents.
func (o output) printer() (printers.ResourcePrinter, error) {
	if o.format == "name" {
		return &printers.NamePrinter{}, nil
	}
	templates := genericclioptions.NewKubeTemplatePrintFlags()
	if p, err := templates.ToPrinter(o.format); !genericclioptions.IsNoCompatiblePrinterError(err) {
		return p, err
	}
	columns := &get.CustomColumnsPrintFlags{NoHeaders: o.noHeaders}
	p, err := columns.ToPrinter(o.format)
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, fmt.Errorf("--output %q is unknown: use json, yaml, name, wide, jsonpath=TEMPLATE, go-template=TEMPLATE, custom-columns=SPEC, "+
			"or one of the last three with -file=FILE, or leave it out", o.format)
	}
	return p, err
}

// object is a document of package view in the form that kubectl's printers take.
func object(doc any) (runtime.Object, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var content map[string]any
	if err := utiljson.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	one := &unstructured.Unstructured{Object: content}
	if one.IsList() {
		return one.ToList()
	}
	return one, nil
}

// named is a list with the names of what a list is of, each once: nodes, GPUs as cordon
// takes them, objects in manifests, or pods. An object of the API server's has a name.
func named(o runtime.Object) (runtime.Object, error) {
	if one, is := o.(*unstructured.Unstructured); is && one.GetName() != "" {
		return one, nil
	}
	list, ok := o.(*unstructured.UnstructuredList)
	if !ok || list.GetKind() == view.KindUsage {
		return nil, errors.New("-o name is of one list: say nodes, devices, slices, waiting or classes")
	}
	names := &unstructured.UnstructuredList{Object: list.Object}
	seen := map[string]bool{}
	for _, item := range list.Items {
		text := func(field string) string {
			s, _, _ := unstructured.NestedFieldNoCopy(item.Object, field)
			if s == nil {
				return ""
			}
			return fmt.Sprint(s)
		}
		kind, name := "Pod", text("pod")
		switch list.GetKind() {
		case view.KindNodes:
			kind, name = "Node", text("name")
		case view.KindAdvice:
			kind, name = "SliceAdvice", text("name")
		case view.KindClasses:
			kind, name = "GPUClass", text("name")
		case view.KindTides:
			kind, name = "Tide", text("name")
		case view.KindDevices, view.KindFragments:
			kind, name = "GPU", text("node")+"/"+cmp.Or(text("index"), text("uuid"))
		case view.KindExplained, view.KindFits:
			kind, name, _ = strings.Cut(text("object"), "/")
		}
		if key := text("namespace") + " " + kind + " " + name; !seen[key] {
			seen[key] = true
			one := unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind}}
			one.SetName(name)
			names.Items = append(names.Items, one)
		}
	}
	return names, nil
}

// sorted are the items by the field of their JSON form that --sort-by names, as kubectl
// sorts.
func sorted[T any](by string, items []T) ([]T, error) {
	if by == "" || len(items) == 0 {
		return items, nil
	}
	list, err := object(view.NewList("List", items))
	if err != nil {
		return nil, err
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	sorter, err := get.SortObjects(nil, objects, by)
	if err != nil {
		return nil, fmt.Errorf("--sort-by: %w", err)
	}
	result := make([]T, len(items))
	for i := range items {
		result[i] = items[sorter.OriginalPosition(i)]
	}
	return result, nil
}
