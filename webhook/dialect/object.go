// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"slices"

	"vernier.dev/vernier/webhook/slim"
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
		SchedulerName string `json:"schedulerName"`
		Queue         string `json:"queue"`
		Tasks         []struct {
			Name         string   `json:"name"`
			MinAvailable *int64   `json:"minAvailable"`
			Template     slim.Pod `json:"template"`
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
// dialect of that name. An object that cannot be read loses nothing.
func (s Set) OfObject(name string, raw []byte) []string {
	i := slices.IndexFunc(s, func(d Dialect) bool { return d.Words().Name == name })
	if i < 0 {
		return nil
	}
	reads, ok := s[i].(ofObjects)
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
