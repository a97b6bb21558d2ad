// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/v1alpha1"
)

const crds = "deploy/chart/files/crds/vernier.dev_"

// part is a part of an object of ours.
type part struct {
	file, property string
	of             reflect.Type
}

// fields has what stands under spec or status of a ledger, or under the status of an account or of
// advice, by the resource's definition, in the order of the Go types.
func fields(of []string) (table, error) {
	t := table{head: []string{"field", "type", "meaning"}}
	parts := map[string]part{
		"spec":    {crds + "sliceledgers.yaml", "spec", reflect.TypeFor[v1alpha1.SliceLedgerSpec]()},
		"status":  {crds + "sliceledgers.yaml", "status", reflect.TypeFor[v1alpha1.SliceLedgerStatus]()},
		"advice":  {crds + "sliceadvices.yaml", "status", reflect.TypeFor[v1alpha1.SliceAdviceStatus]()},
		"account": {crds + "sliceusages.yaml", "status", reflect.TypeFor[v1alpha1.SliceUsageStatus]()},
	}
	for _, name := range of {
		p, found := parts[name]
		if !found {
			return t, fmt.Errorf("no object has %s", name)
		}
		text, err := os.ReadFile(p.file)
		if err != nil {
			return t, err
		}
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, d); err != nil {
			return t, err
		}
		if err := t.walk("", p.of, d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[p.property]); err != nil {
			return t, err
		}
	}
	return t, nil
}

func (t *table) walk(path string, of reflect.Type, schema apiextensionsv1.JSONSchemaProps) error {
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Anonymous {
			if err := t.walk(path, f.Type, schema); err != nil {
				return err
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		s, found := schema.Properties[name]
		if !found {
			return fmt.Errorf("%s%s is not in the definition: make generate", path, name)
		}
		at, inner, elem := path+name, f.Type, s
		if s.Items != nil {
			at, inner, elem = at+"[]", inner.Elem(), *s.Items.Schema
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if s.Description == "" {
			return fmt.Errorf("nothing is said of %s in %s", at, api)
		}
		t.add(code(at), kind(s), sentence(f.Name, s.Description))
		// What Kubernetes has defined, it has described.
		if inner.Kind() == reflect.Struct && inner.PkgPath() == of.PkgPath() {
			if err := t.walk(at+".", inner, elem); err != nil {
				return err
			}
		}
	}
	return nil
}

// kind is a field's type, and what it is held to.
func kind(s apiextensionsv1.JSONSchemaProps) string {
	said := s.Type
	if s.Format == "date-time" {
		said = "time"
	}
	if s.Items != nil {
		said = "list"
	}
	// A type of amounts has a bound of its own, the field another.
	for _, also := range s.AllOf {
		if s.Minimum == nil || also.Minimum != nil && *also.Minimum > *s.Minimum {
			s.Minimum = also.Minimum
		}
	}
	var values []string
	for _, v := range s.Enum {
		values = append(values, strings.Trim(string(v.Raw), `"`))
	}
	switch {
	case len(values) > 0:
		return code(values...)
	case s.Minimum != nil && s.Maximum != nil:
		said += fmt.Sprintf(", %.0f to %.0f", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		said += fmt.Sprintf(", from %.0f", *s.Minimum)
	case s.MaxLength != nil:
		said += fmt.Sprintf(", to %d characters", *s.MaxLength)
	case s.MaxItems != nil:
		said += fmt.Sprintf(" of at most %d", *s.MaxItems)
	}
	return said
}
