// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package agent

import (
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// A device is put into MIG mode only on a node that is labelled for it, and only while
// nothing is on it; nothing can be granted there while it is done, and what was granted
// just before keeps the device.
func testMIGMode(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.gpus.processes = map[string][]int{gpu1: {7}}
	var during []v1alpha1.DeviceStatus
	n.gpus.switched = func(uuid string) {
		i := slices.IndexFunc(n.ledger(t).Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid })
		during = append(during, n.ledger(t).Status.Devices[i])
	}
	label := func(value string) {
		t.Helper()
		object := n.node(t)
		patch := client.MergeFrom(object.DeepCopy())
		object.Labels = map[string]string{v1alpha1.LabelMIGMode: value}
		if err := n.admin.Patch(t.Context(), object, patch); err != nil {
			t.Fatal(err)
		}
	}
	in := func() (all []string) {
		for _, d := range n.ledger(t).Status.Devices {
			if d.MIG == v1alpha1.MIGEnabled {
				all = append(all, d.UUID)
			}
		}
		return all
	}
	n.start(t)
	n.awaitLedger(t, "the devices show", func(l *v1alpha1.SliceLedger) bool { return len(l.Status.Devices) == 2 })
	granted := n.createPod(t, n.name+"-granted", n.name)
	n.grant(t, granted.UID, "default/"+granted.Name)
	label("other")
	n.settled(t)
	label(v1alpha1.LabelMIGModeEnabled)
	n.settled(t)
	if got := in(); len(got) != 0 {
		t.Errorf("%v are in MIG mode: one has a slice, the other a process", got)
	}
	n.delete(t, granted)
	n.revoke(t, granted.UID)
	n.await(t, "the empty device is in MIG mode", func() bool { return slices.Equal(in(), []string{gpu0}) })
	if len(during) != 1 || during[0].UUID != gpu0 || during[0].Healthy || during[0].Reason != "it is being put into MIG mode" {
		t.Errorf("while it was switched the ledger showed %+v", during)
	}
	n.await(t, "it takes slices again", func() bool {
		return slices.ContainsFunc(n.ledger(t).Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == gpu0 && d.Healthy })
	})
}
