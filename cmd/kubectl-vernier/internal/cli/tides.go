// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

func (c *command) tides(ctx context.Context, r client.Reader) error {
	var all v1alpha1.TideList
	if err := r.List(ctx, &all); err != nil {
		return explain(err, "tides."+v1alpha1.Group, "")
	}
	ledgers, readable, err := readableLedgers(ctx, r)
	if err != nil {
		return err
	}
	if !readable {
		c.leftOut("numbers of nodes")
	}
	return list(c, view.KindTides, view.Tides(all.Items, ledgers, readable), func(tides []view.Tide) section {
		return section{table: view.TideTable(tides), none: "No tides: idle slices may have all of each device at any time. A Tide says when, and how much."}
	})
}
