// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/v1alpha1"
)

// AdviceRow is the use of one container of a workload, and the advice for it. Amounts are of one GPU.
type AdviceRow struct {
	Namespace string `json:"namespace"`
	// Name of the SliceAdvice.
	Name      string `json:"name"`
	Workload  string `json:"workload"`
	Container string `json:"container"`
	// Slices that run now.
	Slices           int32                     `json:"slices"`
	Request          v1alpha1.GPUAmounts       `json:"request"`
	Core             v1alpha1.CoreUse          `json:"core"`
	Mem              v1alpha1.MemUse           `json:"mem"`
	ThrottledPercent v1alpha1.Percent          `json:"throttledPercent"`
	Refusals         int64                     `json:"refusals"`
	Advice           v1alpha1.GPUAmounts       `json:"advice"`
	Confidence       v1alpha1.AdviceConfidence `json:"confidence"`
	Reasons          []string                  `json:"reasons"`
	Since            metav1.Time               `json:"since"`
	Through          metav1.Time               `json:"through"`
	// Freeable is what the slices have above the advice together.
	FreeableCore int64        `json:"freeableCore"`
	FreeableMem  v1alpha1.MiB `json:"freeableMemMiB"`
}

// AdviceReport is the printed form of advice.
type AdviceReport struct {
	List[AdviceRow]
	// The amounts that all items have above the advice: percent of GPUs, and memory.
	FreeableCore int64        `json:"freeableCore"`
	FreeableMem  v1alpha1.MiB `json:"freeableMemMiB"`
}

// Advice is the report of these objects, in their order.
func Advice(all []v1alpha1.SliceAdvice) AdviceReport {
	r := AdviceReport{List: NewList[AdviceRow](KindAdvice, nil)}
	for i := range all {
		s := &all[i].Status
		row := AdviceRow{Namespace: all[i].Namespace, Name: all[i].Name, Workload: s.Workload, Container: s.Container, Slices: s.Slices,
			Request: s.Request, Core: s.Core, Mem: s.Mem, ThrottledPercent: s.ThrottledPercent, Refusals: s.Refusals,
			Advice: s.Advice, Confidence: s.Confidence, Reasons: notNull(s.Reasons), Since: s.Since, Through: s.Through}
		row.FreeableCore, row.FreeableMem = advice.Freeable(s)
		r.FreeableCore, r.FreeableMem = r.FreeableCore+row.FreeableCore, r.FreeableMem+row.FreeableMem
		r.Items = append(r.Items, row)
	}
	return r
}

// AdviceTable shows advice.
func AdviceTable(rows []AdviceRow) Table {
	t := Table{header: []string{"NAMESPACE", "WORKLOAD", "CONTAINER", "SLICES", "CORE(%)", "P95(%)", "ADVICE(%)", "MEM(MiB)", "PEAK(MiB)", "ADVICE(MiB)", "CONFIDENCE", "REASON"}}
	core := func(p v1alpha1.Percent) string {
		if p == 0 {
			return "" // no quota
		}
		return strconv.Itoa(int(p))
	}
	mem := func(m v1alpha1.MiB) string { return strconv.FormatInt(int64(m), 10) }
	for _, r := range rows {
		t.rows = append(t.rows, []string{r.Namespace, r.Workload, r.Container, strconv.Itoa(int(r.Slices)),
			core(r.Request.Core), strconv.Itoa(int(r.Core.P95)), core(r.Advice.Core),
			mem(r.Request.MemMiB), mem(r.Mem.PeakMiB), mem(r.Advice.MemMiB), string(r.Confidence), strings.Join(r.Reasons, " ")})
	}
	return t
}
