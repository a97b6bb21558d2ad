// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"path/filepath"
	"reflect"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/mig"
	"vernier.dev/vernier/test/nritest"
)

// On a device in MIG mode a container gets its instance and nothing else, and is
// started only while the driver has that very instance.
func TestMIG(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	n.gpus.mig = map[string]v1alpha1.MIGState{gpu0: v1alpha1.MIGEnabled}
	m, err := mig.New(filepath.Join(t.TempDir(), "mig.json"), mig.Node{
		Devices: n.gpus, Index: n.ledger.Index, Containers: func() ([]mode.Container, bool) { return n.Table.Containers(), n.Table.Synced() },
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Modes[v1alpha1.ModeMIG] = m
	place := v1alpha1.MIGPlace{Profile: 14, Start: 2, Size: 2}
	is := func(uuid string) {
		n.gpus.mu.Lock()
		defer n.gpus.mu.Unlock()
		n.gpus.instances = []v1alpha1.MIGInstance{{MIGPlace: place, UUID: uuid}}
	}
	pod := podOf("a", share30)
	slice := slice30(pod)
	slice.Mode, slice.MIG = v1alpha1.ModeMIG, &place
	n.ledger.grant(gpu0, slice)
	c := containerOf(pod, "main")

	_, err = r.Create(pod, c)
	refusedFor(t, err, "MIG instance", "not ready", "tried again")

	is("MIG-1")
	got, err := r.Create(pod, c)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"vernier.dev/gpu=MIG-1"}; !reflect.DeepEqual(cdiNames(got), want) || len(got.GetMounts()) != 0 || env(got)[v1alpha1.EnvVisibleDevices] != "void" {
		t.Errorf("given %v, mounts %v, environment %v, want %v alone", cdiNames(got), got.GetMounts(), env(got), want)
	}
	is("MIG-2")
	refusedFor(t, r.StartContainer(pod, c), "was destroyed after")

	is("MIG-1")
	if err := r.StartContainer(pod, c); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.SliceStatus{
		Pod: uid(pod), Ctr: "main", UUID: gpu0, Container: c.Id, Mode: v1alpha1.ModeMIG, MIG: &place,
		Memory: v1alpha1.GuaranteeHardware, Compute: v1alpha1.GuaranteeHardware,
	}
	if all := n.Table.Slices(); len(all) != 1 || !reflect.DeepEqual(all[0], want) {
		t.Errorf("status %+v, want %+v", all, want)
	}

	// Invariant 1: nobody else gets onto the instance, whatever the ledger says.
	second := podOf("b", share30)
	stray := slice30(second)
	stray.Mode, stray.MIG = v1alpha1.ModeMIG, &place
	n.ledger.grant(gpu0, stray)
	_, err = r.Create(second, containerOf(second, "main"))
	refusedFor(t, err, "container main of pod team/a has the MIG instance")
}
