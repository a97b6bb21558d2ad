// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/webhook/slim"
)

// Workload says for what pods of a workload's template would be refused and warned, by the
// template's fields. It names the annotations of ours on the workload itself. The workload
// is a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or CronJob, given as JSON. A
// LimitRange or another webhook may still change its pods.
func (r *Reader) Workload(namespace string, raw []byte) ([]string, error) {
	if !r.concerns(raw) && !containsAny(raw, r.schedulers) {
		return nil, nil
	}
	workload, err := slim.DecodeWorkload(raw)
	if err != nil {
		return nil, err
	}
	template, path := workload.Spec.Template, field.NewPath("spec", "template")
	job := field.NewPath("spec", "jobTemplate")
	if template == nil {
		template, path = workload.Spec.JobTemplate.Spec.Template, job.Child("spec", "template")
	}
	if template == nil {
		return nil, nil
	}
	if template.Metadata == nil {
		template.Metadata = &slim.Metadata{}
	}
	read := r.read(namespace, template)
	var warnings []string
	for _, err := range read.Errors {
		warnings = append(warnings, fmt.Sprintf("%s.%s: pods are refused: %s", path, err.Field, err.ErrorBody()))
	}
	of := path.Child("metadata", "annotations")
	warnings = append(warnings, podrequest.Misplaced(workload.Metadata.Annotations, annotationsPath, of)...)
	warnings = append(warnings, podrequest.Misplaced(workload.Spec.JobTemplate.Metadata.Annotations, job.Child("metadata", "annotations"), of)...)
	if len(read.Shares) == 0 && read.Dialect == "" {
		read.Warnings = append(read.Warnings, r.rules.Dialects.Kept(template)...)
	}
	for _, text := range read.Warnings {
		warnings = append(warnings, path.String()+"."+text)
	}
	return warnings, nil
}
