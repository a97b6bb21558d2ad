// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Pods share one GPU, and each sees its share as the whole device.
func TestShareOfOneGPU(t *testing.T) {
	total := int64(ledger(t, small).Status.Devices[0].Mem)
	pods := map[string]struct {
		pod  *pod
		want int64
	}{
		"30 core, 25 mem": {newPod("share-a").share(30, 25).on(small), total * 25 / 100},
		"20 core":         {newPod("share-b").share(20, 0).on(small), total * 20 / 100},
		"mem in MiB only": {newPod("share-c").limit(v1alpha1.ResourceMemMiB, 1025).on(small), 1025},
	}
	uuids := map[string]bool{}
	for name, c := range pods {
		made := awaitReady(t, create(t, c.pod))
		placed := placement(t, made)
		if placed.Node != small || made.Spec.NodeName != small {
			t.Errorf("%s: placed on %s, bound to %s, want %s", name, placed.Node, made.Spec.NodeName, small)
		}
		got := values(t, made, "main")
		if got["device.total_mib"] != itoa(c.want) {
			t.Errorf("%s: the container sees %s MiB in all, want %d", name, got["device.total_mib"], c.want)
		}
		if got["device"] != "1" {
			t.Errorf("%s: the container sees %s devices, want 1", name, got["device"])
		}
		writable, err := sys.Cluster.Exec(t.Context(), made.Namespace, made.Name, "main", "/bin/sh", "-c", writables)
		if err != nil || writable != layout.CountersPath+"\n" {
			t.Errorf("%s: root in the container can write %q, %v", name, writable, err)
		}
		uuids[placed.Containers["main"].Devices[0].UUID] = true
		awaitGuarantee(t, made, "main", v1alpha1.GuaranteeCooperative)
	}
	if len(uuids) != 1 {
		t.Errorf("three small shares were spread over %d devices, want them packed on 1", len(uuids))
	}
}

// writables names what root can open for writing of what enforces a slice, and
// what it can add or remove there.
const writables = `
cd ` + layout.Folder + `
for file in "$PWD"/* "$PWD/more" /etc/ld.so.preload; do
	(: >>"$file") 2>/dev/null && echo "$file"
done
rm -f limits 2>/dev/null && echo removed
exit 0`

// Allocating past the slice fails with CUDA_ERROR_OUT_OF_MEMORY, cleanly, and
// what fits is given.
func TestAllocatingPastTheSliceFails(t *testing.T) {
	parallel(t)
	p := newPod("past").limit(v1alpha1.ResourceMemMiB, 2048).args("--alloc", "2049").on(small)
	made := awaitPhase(t, create(t, p), corev1.PodFailed)
	got := values(t, made, "main")
	if got["alloc.error"] != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("allocating 2049 of 2048 MiB: %v, want error=CUDA_ERROR_OUT_OF_MEMORY", got)
	}
	p = newPod("within").limit(v1alpha1.ResourceMemMiB, 2048).args("--alloc", "1024", "--hold").on(small)
	made = awaitReady(t, create(t, p))
	if got := values(t, made, "main"); got["allocated.mib"] != "1024" {
		t.Errorf("allocating 1024 of 2048 MiB: %v", got)
	}
}

// A share of compute holds: alone on the device, a program that always has a
// kernel ready gets its quota of device time and no more. A busy machine can only
// lower what it gets, so the bound is no matter of timing.
func TestComputeShare(t *testing.T) {
	parallel(t)
	const quota, margin = 30, 5
	p := newPod("burner").share(quota, 10).args("--burn", "3000", "--kernel-us", "1000").on(small)
	made := awaitPhase(t, create(t, p), corev1.PodSucceeded)
	got, err := strconv.ParseFloat(values(t, made, "main")["burn.share_percent"], 64)
	if err != nil || got <= 0 || got > quota+margin {
		t.Errorf("with a quota of %d percent the program got %.1f percent of the device (%v)", quota, got, err)
	}
}

// Where driver and cgroups allow it, the driver itself holds the memory, and the
// ledger says so; the older driver of the other node leaves it to the limiter.
func TestStrongestGuarantee(t *testing.T) {
	newer, older := ledger(t, large).Status.Driver, ledger(t, small).Status.Driver
	if older.MemoryLimits || older.MemoryLimitsReason == "" {
		t.Errorf("driver %s is said to have memory limits: %+v", older.Version, older)
	}
	want := v1alpha1.GuaranteeDriver
	if !newer.MemoryLimits {
		// This machine has no cgroup v2 hierarchy; the node must say just that.
		if !strings.Contains(newer.MemoryLimitsReason, "cgroup") {
			t.Errorf("driver %s: no memory limits because %q", newer.Version, newer.MemoryLimitsReason)
		}
		want = v1alpha1.GuaranteeCooperative
	}
	made := awaitReady(t, create(t, newPod("strong").share(10, 10).on(large)))
	awaitGuarantee(t, made, "main", want)
}

// Several containers of a pod hold slices of their own; an init container
// borrows the room of the containers that start after it.
func TestSeveralContainers(t *testing.T) {
	sidecar := container("sidecar", "--hold")
	sidecar.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
	sidecar.Resources = shareOf(10, 10)
	first := container("first")
	first.Resources = shareOf(70, 70)
	second := container("second", "--hold")
	second.Resources = shareOf(40, 40)

	p := newPod("several").share(30, 30).init(sidecar, first).also(second, bystander("plain")).on(small)
	made := awaitReady(t, create(t, p))

	total := int64(ledger(t, small).Status.Devices[0].Mem)
	for name, percent := range map[string]int64{"sidecar": 10, "first": 70, "main": 30, "second": 40} {
		if got := values(t, made, name)["device.total_mib"]; got != itoa(total*percent/100) {
			t.Errorf("container %s sees %s MiB, want %d", name, got, total*percent/100)
		}
	}
	if got := values(t, made, "plain"); got["device"] != "" || got["error"] != "1" {
		t.Errorf("Invariant 3: a container without a share sees %v", got)
	}
	// By Kubernetes' own rules the pod weighs max(10+30+40, 10+70) = 80.
	if got := counted(ledger(t, small), made.UID); got != 80 {
		t.Errorf("the pod counts %d percent, want 80", got)
	}
}

// kubectl debug: what its own profile adds is refused, by a text that names the profile to
// take, and the container that comes with that one sees no GPU: Invariant 3.
func TestDebugContainer(t *testing.T) {
	made := awaitReady(t, create(t, newPod("debugged").share(10, 10).on(small)))
	debug := func(profile string) (string, error) {
		return sys.Shell(t.Context(), fmt.Sprintf("kubectl -n %s debug %s %s --container=debug --target=main --image=%s --image-pull-policy=Never -- /bin/cudademo",
			made.Namespace, made.Name, profile, made.Spec.Containers[0].Image))
	}
	said, err := debug("")
	profile := regexp.MustCompile(`--profile=\w+`).FindString(said)
	if err == nil || profile == "" {
		t.Fatalf("without a profile: %v, %s", err, said)
	}
	if said, err := debug(profile); err != nil {
		t.Fatalf("with %s: %v, %s", profile, err, said)
	}
	if got := values(t, made, "debug"); got["device"] != "" || got["error"] != "1" {
		t.Errorf("the debug container sees %v", got)
	}
}

// A pod over two GPUs sees two devices, half of its share on each.
func TestShareOverTwoGPUs(t *testing.T) {
	p := newPod("two").share(60, 40).limit(v1alpha1.ResourceGPUs, 2)
	made := awaitReady(t, create(t, p))
	placed := placement(t, made).Containers["main"].Devices
	if len(placed) != 2 || placed[0].UUID == placed[1].UUID || placed[0].Core != 30 || placed[1].Core != 30 {
		t.Errorf("placed %+v, want two devices with 30 core each", placed)
	}
	if got := values(t, made, "main"); got["device"] != "2" {
		t.Errorf("the container sees %v, want two devices", got)
	}
}

// A pod that doesn't fit waits, its event says how far off it is, and a release
// wakes it.
func TestOverflowWaitsAndStartsAfterRelease(t *testing.T) {
	first := awaitReady(t, create(t, newPod("holder").share(80, 80).on(small)))
	waiting := create(t, newPod("overflow").share(30, 25).on(small))
	text := awaitEvent(t, waiting, "needs 30 % compute", "nearest: "+small, "has 20 % and")
	if p := get(t, waiting); len(p.Spec.SchedulingGates) != 1 || p.Spec.NodeName != "" {
		t.Errorf("the pod that doesn't fit is %s; event %q", status(p), text)
	}
	remove(t, first)
	awaitReady(t, waiting)
}

// A whole GPU is exclusive: the container sees all of it and no limiter.
func TestExclusive(t *testing.T) {
	made := awaitReady(t, create(t, newPod("whole").share(100, 0).on(small)))
	if mode := placement(t, made).Containers["main"].Mode; mode != v1alpha1.ModeExclusive {
		t.Errorf("mode %s, want exclusive", mode)
	}
	total, all := values(t, made, "main")["device.total_mib"], ledger(t, small).Status.Devices[0].Mem
	if got, err := strconv.ParseInt(total, 10, 64); err != nil || !near(v1alpha1.MiB(got), all) {
		t.Errorf("the container sees %s MiB, want all %d", total, all)
	}
	awaitGuarantee(t, made, "main", v1alpha1.GuaranteeDevice)
}

// Invariant 3: NVIDIA_VISIBLE_DEVICES=all, which the image has and a pod may add,
// gives a container without a slice nothing, in a labelled namespace and in another; nor
// does a device node that it makes.
func TestNoSliceNoGPU(t *testing.T) {
	for _, ns := range []string{namespace, unlabelled} {
		p := newPod("greedy").in(ns).
			command("/bin/sh", "-c", "mknod /tmp/gpu c 195 0; echo saw visible=$NVIDIA_VISIBLE_DEVICES nodes=$(ls /dev | grep -c nvidia) "+
				"forbidden=$(head -c 1 /tmp/gpu 2>&1 | grep -c 'not permitted'); exec sleep 1000")
		p.on(small)
		made := create(t, p)
		awaitPod(t, made, "to have run", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
		})
		await(t, "the pod's output", func() (bool, string) {
			text, err := sys.Logs(t.Context(), made.Namespace, made.Name, "main")
			return err == nil && strings.Contains(text, "nodes="), text
		})
		if got := values(t, made, "main"); got["saw.visible"] != v1alpha1.EnvVisibleDevicesVoid || got["saw.nodes"] != "0" || got["saw.forbidden"] != "1" {
			t.Errorf("namespace %s: %v, want visible=void, no device node, and one that it makes forbidden", ns, got)
		}
	}
}

// Invariant 3: the variable in the image and in the pod is in the environment
// twice, and NRI can only change the first: such a container is not created.
func TestNoSliceNoGPUAskedTwice(t *testing.T) {
	made := create(t, newPod("twice").in(unlabelled).on(small).env(v1alpha1.EnvVisibleDevices, "all"))
	awaitEvent(t, made, v1alpha1.EnvVisibleDevices, "Remove it from the pod")
	if s := get(t, made).Status.ContainerStatuses; len(s) > 0 && (s[0].State.Running != nil || s[0].State.Terminated != nil) {
		t.Errorf("the container ran: %+v", s[0])
	}
	none := create(t, newPod("polite").in(unlabelled).on(small).env(v1alpha1.EnvVisibleDevices, "none").command("/bin/sleep", "1000"))
	awaitReady(t, none)
}
