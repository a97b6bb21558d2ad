// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/nritest"
)

// What a pod requires of its GPUs is checked at the creation of each of its containers, of all
// that it holds on the node, by what is seen now.
func TestCreateRequiredTopology(t *testing.T) {
	pair := &v1alpha1.TopologyStatus{PCIe: []v1alpha1.DeviceSet{"0-1"}, NUMA: []v1alpha1.DeviceSet{"0", "1"}}
	for name, c := range map[string]struct {
		topology string
		status   *v1alpha1.TopologyStatus
		// alone: the pod has one GPU. elsewhere: the other is another container's.
		alone, elsewhere bool
		near             map[string][]string
		says             []string
	}{
		"within":                         {topology: "pcie:required", status: pair},
		"not within":                     {topology: "nvlink:required", status: pair, says: []string{v1alpha1.AnnotationTopology, "requires nvlink", gpu0 + " and " + gpu1 + " are not each linked", "delete the pod", `create it again with "nvlink"`}},
		"another container's, within":    {topology: "pcie:required", status: pair, elsewhere: true},
		"another container's, elsewhere": {topology: "numa:required", status: pair, elsewhere: true, says: []string{"requires numa", gpu0 + " and " + gpu1 + " are not on one NUMA node"}},
		"nothing is known":               {topology: "pcie:required", says: []string{"requires pcie", "have more than PCIe switches between them"}},
		"linked":                         {topology: "nvlink:required", status: &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1"}}},
		"one GPU":                        {topology: "nvlink:required", alone: true},
		"preferred":                      {topology: "nvlink", status: pair},
		"preferred, RDMA":                {topology: "rdma"},
		"each has RDMA":                  {topology: "rdma:required", near: map[string][]string{gpu0: {"mlx5_0"}, gpu1: {"mlx5_1"}}},
		"one has no RDMA":                {topology: "rdma:required", near: map[string][]string{gpu0: {"mlx5_0"}}, says: []string{"requires rdma", "now " + gpu1 + " has no RDMA device near it"}},
		"one GPU, no RDMA":               {topology: "rdma:required", alone: true, says: []string{"requires rdma", gpu0 + " has no RDMA device"}},
		"unknown":                        {topology: "rack", says: []string{v1alpha1.AnnotationTopology, `"rack"`, "create the pod again"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			connect(t, r, n.Plugin)
			n.gpus.refine = func(s *device.Snapshot) {
				s.Topology = c.status
				for i := range s.Devices {
					s.Devices[i].NICs = c.near[s.Devices[i].UUID]
				}
			}
			shares := twoGPUs
			if c.alone || c.elsewhere {
				shares = share30
			}
			pod := podOf("a", shares)
			pod.Annotations[v1alpha1.AnnotationTopology] = c.topology
			n.ledger.grant(gpu0, slice30(pod))
			if !c.alone {
				other := slice30(pod)
				if c.elsewhere {
					other.Ctr = "other"
				}
				n.ledger.grant(gpu1, other)
			}
			_, err := r.Create(pod, containerOf(pod, "main"))
			if c.says != nil {
				refusedFor(t, err, c.says...)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}
