// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vernier.dev/vernier/test/manifests"
)

// settable are the chart's values that reach the demo, where the parts run as processes: those
// that are flags of the programs, or change admission. What is below one of them is, too.
var settable = []string{
	"allocator.args", "allocator.lookahead", "allocator.preemption", "allocator.reserveAfter",
	"defragment", "dialects", "idle.after", "overcommit",
	"node.args", "node.endDeviceHolders", "node.endUnenforced", "node.injectRDMA", "node.numaBinding", "node.opportunisticCPU",
	"webhook.allowedHostPaths", "webhook.args", "webhook.computeShares", "webhook.minimumShare",
}

// renderValues renders the chart with values, NAME=VALUE with spaces between them, into a
// folder. With none it is deploy/manifests.
func renderValues(ctx context.Context, folder, set string) (manifests.Folder, error) {
	values := strings.Fields(set)
	for _, v := range values {
		name, _, found := strings.Cut(v, "=")
		if !found {
			return "", fmt.Errorf("SET: %s is not NAME=VALUE", v)
		}
		if !slices.ContainsFunc(settable, func(s string) bool { return name == s || strings.HasPrefix(name, s+".") }) {
			return "", fmt.Errorf("SET: %s is no value of the chart that changes the demo. What may be set, as docs/reference/values.md says: %s",
				name, strings.Join(settable, ", "))
		}
	}
	if len(values) == 0 {
		return "", nil
	}
	rendered, err := manifests.Render(ctx, folder, values...)
	if err != nil {
		return "", fmt.Errorf("SET: %w", err)
	}
	return rendered, nil
}
