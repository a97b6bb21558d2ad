// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/test/must"
)

// labelMIGMode sets the node's label, and takes it away where the value is null. It has
// a context of its own: it runs in clean-ups.
func labelMIGMode(t *testing.T, node, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.LabelMIGMode, value)
	if _, err := sys.Kube.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

// inMIGMode are the devices of a node that its driver has in MIG mode.
func inMIGMode(t *testing.T, node string) (all []string) {
	t.Helper()
	now := must.Get(sys.Node(node).GPU.Status())(t)
	for _, d := range now.Devices {
		if d.MIG {
			all = append(all, d.UUID)
		}
	}
	return all
}

// awaitMIGMode waits until the ledger shows a device well, and in MIG mode or out of it.
func awaitMIGMode(t *testing.T, uuid string, want v1alpha1.MIGState) {
	t.Helper()
	await(t, fmt.Sprintf("device %s to be well, and MIG mode %s", uuid, want), func() (bool, string) {
		for _, d := range ledger(t, large).Status.Devices {
			if d.UUID == uuid {
				return d.MIG == want && d.Healthy, fmt.Sprintf("MIG mode %s, %s", d.MIG, d.Reason)
			}
		}
		return false, "it is not there"
	})
}

// switchOff takes the node's devices out of MIG mode, as an administrator would.
func switchOff(t *testing.T, node string) {
	t.Helper()
	t.Setenv("SIMGPU_STATE", sys.Node(node).GPU.State)
	_, lib, err := inventory.Open(inventory.Options{Library: sys.Node(node).GPU.NVML()})
	must.Do(t, err)
	defer lib.Shutdown()
	for _, uuid := range inMIGMode(t, node) {
		d, r := lib.DeviceGetHandleByUUID(uuid)
		if r != nvml.SUCCESS {
			t.Fatal(r)
		}
		if status, r := d.SetMigMode(nvml.DEVICE_MIG_DISABLE); r != nvml.SUCCESS || status != nvml.SUCCESS {
			t.Errorf("taking %s out of MIG mode: %v, %v", uuid, r, status)
		}
	}
}

// The label of a node has its devices put into MIG mode, each when nothing is on it: the
// one that is idle at once, the other when it was drained; who runs there is left alone.
// Nobody waits for an instance: the label is enough, and without it nothing is switched,
// nor is anything switched back. What takes a reset stays as it is, and that is told.
func TestMIGModeByLabel(t *testing.T) {
	t.Cleanup(func() {
		labelMIGMode(t, large, "null")
		labelMIGMode(t, small, "null")
		if t.Failed() {
			switchOff(t, large)
		}
	})
	running := awaitReady(t, create(t, newPod("before-mig").share(30, 30).on(large)))
	check, busy := unmoved(t, running), deviceOf(t, running).UUID
	var idle string
	for _, d := range ledger(t, large).Status.Devices {
		if d.UUID != busy {
			idle = d.UUID
		}
	}
	if got := inMIGMode(t, large); len(got) != 0 {
		t.Fatalf("%v are in MIG mode, and the node has no label", got)
	}
	labelMIGMode(t, large, `"`+v1alpha1.LabelMIGModeEnabled+`"`)
	awaitMIGMode(t, idle, v1alpha1.MIGEnabled)

	one := awaitReady(t, create(t, newPod("by-label").share(10, 5).on(large).annotate(v1alpha1.AnnotationMode, "mig")))
	awaitGuarantee(t, one, "main", v1alpha1.GuaranteeHardware)
	if got := deviceOf(t, one).UUID; got != idle {
		t.Errorf("the instance is on %s, want %s", got, idle)
	}
	if got := values(t, one, "main"); got["device"] != "1" || got["device.total_mib"] != "9984" { // 1g.10gb of an H100
		t.Errorf("the container sees %v, want one device of 9984 MiB", got)
	}
	if got := inMIGMode(t, large); !slices.Equal(got, []string{idle}) {
		t.Errorf("in MIG mode: %v, want only %s: the other is in use", got, idle)
	}
	check()

	// What keeps new slices off a device has it empty in the end.
	uncordoned(t, large+"/"+busy)
	shell(t, "kubectl vernier drain "+large+"/"+busy+" --force --timeout 2m --grace-period 1")
	awaitMIGMode(t, busy, v1alpha1.MIGEnabled)
	shell(t, "kubectl vernier uncordon "+large+"/"+busy)
	awaitTold(t, large, "was put into MIG mode", 2)

	// An A100 takes a reset.
	labelMIGMode(t, small, `"`+v1alpha1.LabelMIGModeEnabled+`"`)
	awaitTold(t, small, "takes a reset", 1)
	if got := inMIGMode(t, small); len(got) != 0 {
		t.Errorf("%v of node %s are in MIG mode", got, small)
	}

	// Nothing is switched back when the label goes, and nothing switched again.
	labelMIGMode(t, large, "null")
	remove(t, one)
	again := awaitReady(t, create(t, newPod("after-label").share(10, 5).on(large).annotate(v1alpha1.AnnotationMode, "mig")))
	if got := inMIGMode(t, large); len(got) != 2 {
		t.Errorf("without the label only %v are in MIG mode", got)
	}
	remove(t, again)
	await(t, "the instances to go", func() (bool, string) {
		left := 0
		for _, d := range ledger(t, large).Status.Devices {
			left += len(d.Instances)
		}
		return left == 0, itoa(int64(left))
	})
	switchOff(t, large)
	for _, uuid := range []string{idle, busy} {
		awaitMIGMode(t, uuid, v1alpha1.MIGDisabled)
	}
	last := awaitReady(t, create(t, newPod("out-of-mig").share(60, 60).on(large)))
	awaitGuarantee(t, last, "main", v1alpha1.GuaranteeDriver)
	if got := inMIGMode(t, large); len(got) != 0 {
		t.Errorf("%v are in MIG mode again, without the label", got)
	}
}

// awaitTold waits until that many events of the node's ledger say so.
func awaitTold(t *testing.T, node, text string, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d events of the ledger of %s that say %q", n, node, text), func() (bool, string) {
		all := sys.Events(t.Context(), metav1.NamespaceAll, "involvedObject.kind=SliceLedger,involvedObject.name="+node)
		told := 0
		for _, e := range all {
			if strings.HasPrefix(e, "MIGMode: ") && strings.Contains(e, text) {
				told++
			}
		}
		return told == n, strings.Join(all, "\n")
	})
}
