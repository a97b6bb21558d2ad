// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"vernier.dev/vernier/api/v1alpha1"
)

// Use is what a container uses of one GPU now, by the word of its node's agent.
type Use struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Node      string `json:"node"`
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	// Used and Limit are of the slice's memory.
	Used  v1alpha1.MiB `json:"usedMiB"`
	Limit v1alpha1.MiB `json:"limitMiB"`
	// Duty is percent of the GPU's time; absent where nothing measures it, or has
	// not for long enough.
	Duty *int `json:"dutyCycle,omitempty"`
	// Core is the quota in percent; absent where there is none.
	Core *int `json:"core,omitempty"`
}

// Metrics of the node agent, whose reference is docs/reference/metrics.md.
const (
	metricUsed  = "container_accelerator_memory_used_bytes"
	metricLimit = "container_accelerator_memory_total_bytes"
	metricDuty  = "container_accelerator_duty_cycle"
	metricQuota = "vernier_container_compute_limit_ratio"
)

// Uses reads the metrics of one node's agent.
func Uses(text []byte) ([]Use, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	type key struct{ namespace, pod, container, uuid string }
	var all []*Use
	byKey := map[key]*Use{}
	each := func(name string, set func(*Use, float64)) {
		for _, m := range families[name].GetMetric() {
			labels := labelsOf(m)
			uuid := cmp.Or(labels["acc_id"], labels["uuid"])
			k := key{labels["namespace"], labels["pod"], labels["container"], uuid}
			if byKey[k] == nil {
				byKey[k] = &Use{Namespace: k.namespace, Pod: k.pod, Container: k.container, Node: labels["node"], UUID: uuid, Model: labels["model"]}
				all = append(all, byKey[k])
			}
			set(byKey[k], m.GetGauge().GetValue())
		}
	}
	percent := func(of float64) *int { n := int(math.Round(of)); return &n }
	each(metricLimit, func(u *Use, v float64) { u.Limit = v1alpha1.MiBFromBytes(uint64(v)) })
	each(metricUsed, func(u *Use, v float64) { u.Used = v1alpha1.MiBFromBytes(uint64(v)) })
	each(metricDuty, func(u *Use, v float64) { u.Duty = percent(v) })
	each(metricQuota, func(u *Use, v float64) { u.Core = percent(v * 100) })
	uses := make([]Use, len(all))
	for i, u := range all {
		uses[i] = *u
	}
	return uses, nil
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// SortUses brings uses into the order of the table.
func SortUses(all []Use) {
	slices.SortFunc(all, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.UUID, b.UUID))
	})
}
