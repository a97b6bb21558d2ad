// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"slices"
)

// oneByOne is what becomes of another system's group, with the remedy.
const oneByOne = "the pods are placed one by one, not all or none: name a PodGroup with the label scheduling.x-k8s.io/pod-group"

// Object is what pods are made from: the part that other systems read for all of its pods.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Queue        string `json:"queue"`
		MinAvailable *int64 `json:"minAvailable"`
		Tasks        []struct {
			MinAvailable *int64 `json:"minAvailable"`
		} `json:"tasks"`
	} `json:"spec"`

	warnings []string
}

func (o *Object) lose(field, why string) {
	o.warnings = append(o.warnings, field+": not honoured: "+why)
}

// ofObjects are the dialects of systems that read the objects that pods are made from.
type ofObjects interface{ Object(o *Object) }

// OfObject says what is lost of an object, given as JSON, whose pods are written in the
// dialect of that name. What cannot be read says nothing.
func OfObject(name string, raw []byte) []string {
	all := Settings{}.build()
	i := slices.IndexFunc(all, func(d Dialect) bool { return d.Words().Name == name })
	if i < 0 {
		return nil
	}
	reads, ok := all[i].(ofObjects)
	if !ok {
		return nil
	}
	o := &Object{}
	if err := json.Unmarshal(raw, o); err != nil {
		return nil
	}
	reads.Object(o)
	return o.warnings
}
