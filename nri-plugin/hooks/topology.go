// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// apart says what the GPUs of a pod are not, for each level of several.
var apart = map[v1alpha1.TopologyLevel]string{
	v1alpha1.TopologyNVLink: "are not each linked to each other by NVLink",
	v1alpha1.TopologyPCIe:   "have more than PCIe switches between them",
	v1alpha1.TopologyNUMA:   "are not on one NUMA node",
}

// checkTopology checks once more what the pod requires of its GPUs, by what is seen now: a link
// may have gone down since they were chosen.
func checkTopology(pod *api.PodSandbox, asked v1alpha1.TopologyRequest, index *ledger.Index, now *device.Snapshot) error {
	if !asked.Required {
		return nil
	}
	held := index.Devices(uid(pod))
	all := (&v1alpha1.SliceLedgerStatus{Devices: now.Devices, Topology: now.Topology}).Near()
	near := make([]v1alpha1.Near, len(held))
	for i, uuid := range held {
		if at := slices.IndexFunc(now.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid }); at >= 0 {
			near[i] = all[at]
		}
	}
	if asked.Level.Within(near...) {
		return nil
	}
	why := apart[asked.Level]
	if asked.Level == v1alpha1.TopologyRDMA {
		why = "has no RDMA device near it with a port that is up"
		held = slices.DeleteFunc(held, func(uuid string) bool {
			d, _ := now.Device(uuid)
			return len(d.NICs) > 0
		})
	}
	return fmt.Errorf("annotation %s requires %s, and as this node is now %s %s. Delete the pod so that it is placed again, or create it again with %q, which takes the nearest that there is",
		v1alpha1.AnnotationTopology, asked.Level, strings.Join(held, " and "), why, asked.Level)
}
