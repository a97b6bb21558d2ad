// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schema is what the tables take of JSON Schema.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Description          string             `json:"description"`
	Enum                 []string           `json:"enum"`
	Pattern              string             `json:"pattern"`
	Minimum              *float64           `json:"minimum"`
	Maximum              *float64           `json:"maximum"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	Definitions          map[string]*schema `json:"definitions"`
	AdditionalProperties any                `json:"additionalProperties"`
}

const chart = "deploy/chart/"

// values has the chart's values: what values.yaml says of each, its default, and what
// values.schema.json lets stand there.
func values([]string) (table, error) {
	t := table{head: []string{"value", "default", "allowed", "meaning"}}
	text, err := os.ReadFile(chart + "values.yaml")
	if err != nil {
		return t, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return t, err
	}
	text, err = os.ReadFile(chart + "values.schema.json")
	if err != nil {
		return t, err
	}
	root := &schema{}
	if err := json.Unmarshal(text, root); err != nil {
		return t, err
	}
	return t, t.below("", doc.Content[0], root, root)
}

// below adds what stands under a key. A mapping whose keys are free, or which the schema
// describes as a whole, is one value.
func (t *table) below(path string, node *yaml.Node, s, root *schema) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := path + key.Value
		of := s.Properties[key.Value]
		if of == nil {
			return fmt.Errorf("values.schema.json has no %s", at)
		}
		said := strings.Join(strings.Fields(strings.ReplaceAll(key.HeadComment, "#", " ")), " ")
		described := cmp.Or(of.Description, of.resolve(root).Description)
		said = cmp.Or(said, described)
		if of = of.resolve(root); len(value.Content) > 0 && of.closed() && described == "" {
			if said != "" {
				t.add(code(at), "", "", said)
			}
			if err := t.below(at+".", value, of, root); err != nil {
				return err
			}
			continue
		}
		var plain any
		if err := value.Decode(&plain); err != nil {
			return err
		}
		standard, err := json.Marshal(plain)
		if err != nil {
			return err
		}
		if said == "" {
			return fmt.Errorf("nothing is said of %s in values.yaml, nor in the schema", at)
		}
		t.add(code(at), code(string(standard)), of.allowed(root), said)
	}
	return nil
}

// resolve follows a reference.
func (s *schema) resolve(root *schema) *schema {
	if s.Ref == "" {
		return s
	}
	return root.Definitions[strings.TrimPrefix(s.Ref, "#/definitions/")]
}

// closed tells whether only keys that the chart knows may stand there.
func (s *schema) closed() bool { return len(s.Properties) > 0 && s.AdditionalProperties == false }

// allowed is what the schema lets stand there.
func (s *schema) allowed(root *schema) string {
	s = s.resolve(root)
	switch {
	case len(s.Enum) > 0:
		return code(s.Enum...)
	case s.Items != nil:
		return "list: " + s.Items.allowed(root)
	case s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("%s, %.0f to %.0f", s.Type, *s.Minimum, *s.Maximum)
	}
	return s.Type
}
