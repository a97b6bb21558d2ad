// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

func (c *command) advise(ctx context.Context, r client.Reader) error {
	var list v1alpha1.SliceAdviceList
	if err := r.List(ctx, &list, client.InNamespace(c.ns)); err != nil {
		return explain(err, "sliceadvices."+v1alpha1.Group, c.ns)
	}
	report := view.Advice(list.Items)
	items, err := sorted(c.sortBy, report.Items)
	if err != nil {
		return err
	}
	report.Items = items
	err = c.output.print(c.out, c.errOut, report, section{
		table: view.AdviceTable(report.Items),
		none:  "No advice " + c.where() + ": it follows within 40 minutes of the start of a slice in mode limiter or exclusive.",
	})
	if err == nil && c.output.forPeople() && len(report.Items) > 0 {
		fmt.Fprintf(whole(c.errOut), "freeable %s, at medium and high confidence: %.2f GPUs, %.1f GiB\n", c.where(),
			float64(report.FreeableCore)/float64(v1alpha1.WholeGPU), float64(report.FreeableMem)/1024)
	}
	return err
}
