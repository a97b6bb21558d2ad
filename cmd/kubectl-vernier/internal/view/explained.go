// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/manifest"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
)

// Verdicts on a pod.
const (
	// VerdictUntouched: it asks for nothing, and Vernier leaves it alone.
	VerdictUntouched = "untouched"
	VerdictAdmitted  = "admitted"
	VerdictRefused   = "refused"
)

// ExplainedPod is what admission would make of a pod.
type ExplainedPod struct {
	// Object that the pod stands in, as KIND/NAME.
	Object    string `json:"object"`
	Namespace string `json:"namespace,omitempty"`
	// Path of the template in the object.
	Path    string `json:"path,omitempty"`
	Verdict string `json:"verdict"`
	// Dialect that it is written in.
	Dialect string `json:"dialect,omitempty"`
	// Needs are those of its containers, per GPU; none where it is refused.
	Needs    []model.Need `json:"needs"`
	Warnings []string     `json:"warnings,omitempty"`
	// ObjectWarnings are of the object's own fields, with the first of its templates that
	// they matter to.
	ObjectWarnings []string  `json:"objectWarnings,omitempty"`
	Refusals       []Refusal `json:"refusals,omitempty"`
	// Hint says what else to try.
	Hint string `json:"hint,omitempty"`
}

// Refusal is one reason against a pod.
type Refusal struct {
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// Explain words what was read of a pod; err says that it cannot be read.
func Explain(pod manifest.Pod, read podtemplate.Reading, err error) ExplainedPod {
	e := ExplainedPod{Object: pod.Object, Namespace: pod.Namespace, Path: pod.Path, Verdict: VerdictUntouched,
		Dialect: read.Dialect, Needs: []model.Need{}, Warnings: read.Warnings}
	for _, f := range pod.Unknown {
		e.Warnings = append(e.Warnings, f+": no pod has such a field: kubectl refuses it, or it is dropped")
	}
	switch {
	case err != nil:
		e.Verdict, e.Refusals = VerdictRefused, []Refusal{{Message: "the API server would not take it for a pod: " + err.Error() + "; annotations and labels are texts: put numbers in quotes"}}
	case len(read.Errors) > 0:
		e.Verdict, e.Refusals = VerdictRefused, refusals(read.Errors)
	case len(read.Shares) > 0:
		e.Verdict, e.Needs = VerdictAdmitted, model.Needs(&read.Request)
	}
	return e
}

// Hint says in which dialect a pod asks that is not read so; empty for none. The settings
// are valid, and which dialects they name does not matter.
func Hint(settings dialect.Settings, pod []byte) string {
	settings.Dialects = "all"
	all, err := settings.Set()
	if err != nil {
		return ""
	}
	read, err := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: all}).Read("", pod)
	if err != nil || read.Dialect == "" {
		return ""
	}
	return fmt.Sprintf("it asks in the dialect %[1]s, which is not switched on: --dialects %[1]s; in a cluster: dialects.enabled of the chart, and %s=%s on the namespace",
		read.Dialect, v1alpha1.LabelInject, v1alpha1.LabelInjectEnabled)
}

func refusals(errs field.ErrorList) []Refusal {
	var all []Refusal
	for _, err := range errs {
		all = append(all, Refusal{Field: err.Field, Message: err.ErrorBody()})
	}
	return all
}

// Name is how people tell the pod from others.
func (e ExplainedPod) Name() string {
	if e.Path == "" || e.Path == "spec.template" {
		return e.Object
	}
	return e.Object + " " + e.Path
}

// ExplainedTable has a row for each container that asks, and one for a pod in
// which none does.
func ExplainedTable(pods []ExplainedPod) Table {
	t := Table{header: []string{"OBJECT", "VERDICT", "DIALECT", "CONTAINER", "GPUS", "CORE(%)/GPU", "MEM/GPU"}}
	for _, p := range pods {
		if len(p.Needs) == 0 {
			t.rows = append(t.rows, []string{p.Name(), p.Verdict, p.Dialect, "", "", "", ""})
		}
		for _, n := range p.Needs {
			core, mem := "", number(n.MemMiB)+" MiB"
			if n.Core > 0 {
				core = number(n.Core)
			}
			if n.MemPercent > 0 {
				mem = number(n.MemPercent) + " %"
			}
			t.rows = append(t.rows, []string{p.Name(), p.Verdict, p.Dialect, n.Container, strconv.Itoa(int(n.GPUs)), core, mem})
		}
	}
	return t
}
