// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strconv"

	model "vernier.dev/vernier/allocator/state/view"
)

// UseTable shows uses.
func UseTable(all []model.Use) Table {
	t := Table{header: []string{"NAMESPACE", "POD", "CONTAINER", "NODE", "GPU", "MEM(MiB)", "DUTY-CYCLE(%)", "QUOTA(%)"}}
	shown := func(n *int) string {
		if n == nil {
			return ""
		}
		return strconv.Itoa(*n)
	}
	for _, u := range all {
		t.rows = append(t.rows, []string{u.Namespace, u.Pod, u.Container, u.Node, shortUUID(u.UUID), ratio(u.Used, u.Limit), shown(u.Duty), shown(u.Core)})
	}
	return t
}
