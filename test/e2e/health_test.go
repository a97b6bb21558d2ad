// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cdi"
	"vernier.dev/vernier/test/must"
)

// shell runs a line as an operator would.
func shell(t *testing.T, line string) string {
	t.Helper()
	out, err := sys.Shell(t.Context(), line)
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// deviceOf is the device of the pod's main container.
func deviceOf(t *testing.T, p *corev1.Pod) v1alpha1.DeviceStatus {
	t.Helper()
	uuid := placement(t, p).Containers["main"].Devices[0].UUID
	for _, d := range ledger(t, p.Spec.NodeName).Status.Devices {
		if d.UUID == uuid {
			return d
		}
	}
	t.Fatalf("device %s of pod %s is not on node %s", uuid, p.Name, p.Spec.NodeName)
	return v1alpha1.DeviceStatus{}
}

// uncordoned has a device uncordoned when the test ends: the tests that follow need it.
func uncordoned(t *testing.T, name string) {
	t.Cleanup(func() {
		if out, err := sys.Shell(context.Background(), "kubectl vernier uncordon "+name); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// awaitHealth waits until the node says of a device that it is well, or isn't.
func awaitHealth(t *testing.T, node, uuid string, healthy bool) {
	t.Helper()
	await(t, fmt.Sprintf("device %s to be healthy: %t", uuid, healthy), func() (bool, string) {
		l := ledger(t, node)
		for _, d := range l.Status.Devices {
			if d.UUID == uuid {
				return d.Healthy == healthy, d.Reason
			}
		}
		return false, "it is not there"
	})
}

// awaitHealthy waits for the pod's condition.
func awaitHealthy(t *testing.T, p *corev1.Pod, want corev1.ConditionStatus, reason string) {
	t.Helper()
	awaitPod(t, p, "to be told", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == v1alpha1.PodConditionGPUHealthy {
				return c.Status == want && c.Reason == reason && c.Message != "" && !c.LastTransitionTime.IsZero()
			}
		}
		return false
	})
}

// A critical Xid takes a device out of service: who runs on it is told and left alone,
// who waits goes elsewhere or waits on, and all is undone when it has recovered. What
// an operator cordons and drains is his own affair.
func TestDeviceFails(t *testing.T) {
	running := awaitReady(t, create(t, newPod("on-device").share(30, 30).on(large)))
	check := unmoved(t, running)
	device := deviceOf(t, running)
	gpus := sys.Node(large).GPU
	well := func() {
		// As a reset does.
		must.Report(t, gpus.Lose(device.UUID))
		awaitEvidence(t, "off the bus", device.UUID)
		must.Report(t, gpus.Recover(device.UUID))
	}
	must.Do(t, gpus.Xid(device.UUID, 31)) // a program's fault
	must.Do(t, gpus.Xid(device.UUID, 48))
	recovered := false
	t.Cleanup(func() {
		if !recovered {
			_ = gpus.Lose(device.UUID)
			_ = gpus.Recover(device.UUID)
		}
	})
	awaitHealth(t, large, device.UUID, false)
	awaitEvent(t, running, "VernierUnhealthy", "Xid 48", fmt.Sprintf("GPU %d", device.Index))
	awaitHealthy(t, running, corev1.ConditionFalse, "GPUUnhealthy")

	next := awaitReady(t, create(t, newPod("elsewhere").share(60, 60).on(large)))
	if got := deviceOf(t, next); got.UUID == device.UUID {
		t.Errorf("placed on GPU %d, which is unhealthy", got.Index)
	}
	waits := create(t, newPod("waits").share(60, 60).on(large))
	awaitEvent(t, waits, "VernierWaiting", "needs 60 % compute")
	check()

	well()
	recovered = true
	awaitHealthy(t, running, corev1.ConditionTrue, "GPURecovered")
	awaitEvent(t, running, "VernierRecovered")
	if got := deviceOf(t, awaitReady(t, waits)); got.UUID != device.UUID {
		t.Errorf("the pod that waited is on GPU %d, want the one that recovered", got.Index)
	}
	check()
	told := 0
	for _, e := range events(t.Context(), running) {
		if strings.HasPrefix(e, "VernierUnhealthy") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d events VernierUnhealthy, want 1: %q", told, events(t.Context(), running))
	}

	name := fmt.Sprintf("%s/%d", large, device.Index)
	uncordoned(t, large+"/"+device.UUID)
	out := shell(t, "kubectl vernier drain "+name+" --force --reason 'to be looked at' --timeout 2m --grace-period 1")
	if !strings.Contains(out, "gpu/"+name+" drained") || !strings.Contains(out, namespace+"/"+running.Name) || strings.Contains(out, next.Name) {
		t.Errorf("drain printed %q", out)
	}
	if c := ledger(t, large).Spec.Cordon(device.UUID); c == nil || c.By == "" || c.Reason != "to be looked at" {
		t.Errorf("cordon %+v", c)
	}
	if _, err := sys.Kube.CoreV1().Pods(namespace).Get(t.Context(), next.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the pod on the other device: %v", err)
	}
	again := create(t, newPod("after-drain").share(60, 60).on(large))
	awaitEvent(t, again, "VernierWaiting", "needs 60 % compute")
	shell(t, "kubectl vernier uncordon "+name)
	awaitReady(t, again)
}

// awaitEvidence waits until the node has seen what befell the device.
func awaitEvidence(t *testing.T, what, uuid string) {
	t.Helper()
	await(t, "device "+uuid+" to be "+what, func() (bool, string) {
		for _, d := range ledger(t, large).Status.Devices {
			if d.UUID == uuid {
				return strings.Contains(d.Reason, what), d.Reason
			}
		}
		return false, "it is not there"
	})
}

// Invariant 4: the driver's library is replaced on disk. The agent ends itself and says
// why; the one that is started again finds everything as it was, in every mode.
func TestDriverReplaced(t *testing.T) {
	agent, root := sys.Node(large).Agent, sys.Node(large).GPU.DriverRoot
	limited := awaitReady(t, create(t, newPod("limited").share(30, 30).on(large)))
	whole := awaitReady(t, create(t, newPod("whole").limit(v1alpha1.ResourceCore, 100).limit(v1alpha1.ResourceMemPercent, 100).on(large)))
	checkLimited, checkWhole := unmoved(t, limited), unmoved(t, whole)
	inUse := func() string {
		var all []string
		for _, s := range ledger(t, large).Status.Slices {
			if s.Pod == limited.UID || s.Pod == whole.UID {
				all = append(all, fmt.Sprintf("%+v", s))
			}
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	awaitGuarantee(t, limited, "main", v1alpha1.GuaranteeDriver)
	awaitGuarantee(t, whole, "main", v1alpha1.GuaranteeDevice)
	before := inUse()
	library := must.Get(filepath.EvalSymlinks(cdi.FindNVML(root)))(t)
	restart := onceBack(t, agent)
	agent.Leave()
	text := must.Get(os.ReadFile(library))(t)
	// As a package manager does: another file by the same name.
	must.Do(t, os.WriteFile(library+".new", text, 0o755))
	must.Do(t, os.Rename(library+".new", library))
	await(t, "the agent to end itself", func() (bool, string) { return !agent.Running(), "it runs" })
	ready := meta.FindStatusCondition(ledger(t, large).Status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != metav1.ConditionFalse || ready.Reason != "DriverReplaced" || !strings.Contains(ready.Message, "libnvidia-ml") {
		t.Errorf("condition %+v", ready)
	}
	checkLimited()
	checkWhole()
	restart()
	await(t, "the next agent to be ready", func() (bool, string) {
		l := ledger(t, large)
		return meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionReady), fmt.Sprintf("%+v", l.Status.Conditions)
	})
	await(t, "the slices in use to be said as before", func() (bool, string) {
		after := inUse()
		return after == before, after + "\nbefore\n" + before
	})
	checkLimited()
	checkWhole()
	awaitReady(t, create(t, newPod("after-upgrade").share(10, 10).on(large)))
}

// Invariant 4: the same for an instance of MIG, on a node whose agent is killed: it is
// recognised, not made again, and its container stays.
func TestAgentKilledBesideAnInstance(t *testing.T) {
	p := awaitReady(t, create(t, instance("kept", 10, 10)))
	check := unmoved(t, p)
	awaitGuarantee(t, p, "main", v1alpha1.GuaranteeHardware)
	// held is what the node says of the pod's slice and of the instance that it is.
	held := func() (seen string) {
		l := ledger(t, cut)
		for _, s := range l.Status.Slices {
			if s.Pod != p.UID || s.MIG == nil {
				continue
			}
			for _, i := range l.Status.Devices[0].Instances {
				if i.MIGPlace == *s.MIG {
					seen += fmt.Sprintf("%s held by %s, instance %+v", s.Container, s.Memory, i)
				}
			}
		}
		return seen
	}
	before := held()
	agent := sys.Node(cut).Agent
	kill(t, agent)
	restart := onceBack(t, agent)
	check()
	restart()
	awaitReady(t, create(t, instance("next", 10, 10))) // by the new agent
	await(t, "the instance to be as it was", func() (bool, string) {
		now := held()
		return now == before && now != "", now + ", before " + before
	})
	check()
}
