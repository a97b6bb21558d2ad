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

// injectRDMA names the RDMA devices near the container's GPUs to it, and gives it their device
// nodes where they are asked for.
func (p *Plugin) injectRDMA(asked bool, grants []ledger.Grant, now *device.Snapshot, adjust *api.ContainerAdjustment) error {
	near := nearNICs(grants, now)
	if len(near) > 0 {
		adjust.AddEnv(v1alpha1.EnvNearHCAs, strings.Join(near, ","))
	}
	if !asked {
		return nil
	}
	if !p.RDMA.Inject {
		return fmt.Errorf("annotation %s asks for device nodes, and this node's agent gives none. An administrator can set node.injectRDMA of the chart, or create the pod again without the annotation",
			v1alpha1.AnnotationRDMA)
	}
	if len(near) == 0 {
		return fmt.Errorf("annotation %s asks for RDMA devices near its GPUs, and %s has none with a port that is up. It is tried again: see rdma link on the node, or create the pod again without the annotation",
			v1alpha1.AnnotationRDMA, strings.Join(uuids(grants), " and "))
	}
	nodes, err := p.RDMA.Nodes(near)
	if err != nil {
		return fmt.Errorf("annotation %s: %w; it is tried again", v1alpha1.AnnotationRDMA, err)
	}
	for _, n := range nodes {
		adjust.AddDevice(&api.LinuxDevice{Path: n.Path, Type: "c", Major: n.Major, Minor: n.Minor})
	}
	return nil
}

// nearNICs are the RDMA devices near the grants' devices, in the order of these, each once.
func nearNICs(grants []ledger.Grant, now *device.Snapshot) []string {
	var near []string
	for _, g := range grants {
		d, _ := now.Device(g.UUID)
		for _, name := range d.NICs {
			if !slices.Contains(near, name) {
				near = append(near, name)
			}
		}
	}
	return near
}

func uuids(grants []ledger.Grant) []string {
	all := make([]string, len(grants))
	for i, g := range grants {
		all[i] = g.UUID
	}
	return all
}
