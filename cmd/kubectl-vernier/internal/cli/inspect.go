// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

func (c *command) inspectCommand() *cobra.Command {
	unit := string(view.UnitGiB)
	cmd := c.sub("inspect", "Memory of GPUs in the form of gpushare's inspection", func(ctx context.Context, r client.Reader) error {
		if unit != string(view.UnitGiB) && unit != string(view.UnitMiB) {
			return fmt.Errorf("--unit %q is unknown: use GiB or MiB", unit)
		}
		return c.inspect(ctx, r, view.MemoryUnit(unit))
	})
	cmd.Flags().StringVar(&unit, "unit", unit, "GiB or MiB")
	completeWith(cmd, "unit", "GiB", "MiB")
	return cmd
}

func (c *command) inspect(ctx context.Context, r client.Reader, unit view.MemoryUnit) error {
	all, err := ledgers(ctx, r)
	if err != nil {
		return err
	}
	devices := model.Devices(all)
	if !c.output.forPeople() || len(devices) == 0 {
		return c.output.print(c.out, c.errOut, view.NewList(view.KindDevices, devices), section{none: noDevices})
	}
	known, err := addresses(ctx, r)
	if err != nil {
		fmt.Fprintln(c.errOut, "addresses of nodes are unknown:", err)
	}
	table, sum := view.Inspect(devices, known, unit)
	width, err := printTable(c.out, table, !c.output.noHeaders)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "%s\n%s", strings.Repeat("-", width), sum)
	return err
}

// addresses are the internal ones of all nodes, by name.
func addresses(ctx context.Context, r client.Reader) (map[string]string, error) {
	var list corev1.NodeList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	known := make(map[string]string, len(list.Items))
	for i := range list.Items {
		for _, a := range list.Items[i].Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				known[list.Items[i].Name] = a.Address
				break
			}
		}
	}
	return known, nil
}
