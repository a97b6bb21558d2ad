// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// unmoved remembers a pod's running container, and tells later whether it is
// still the same, has never restarted and holds new programs to its slice:
// Invariant 4.
func unmoved(t *testing.T, p *corev1.Pod) func() {
	t.Helper()
	before, total := get(t, p).Status.ContainerStatuses[0], values(t, p, "main")["device.total_mib"]
	return func() {
		t.Helper()
		now := get(t, p)
		after := now.Status.ContainerStatuses[0]
		if after.State.Running == nil || after.ContainerID != before.ContainerID || after.RestartCount != before.RestartCount {
			t.Errorf("Invariant 4: the container of %s did not survive: before %s, now %s", p.Name, before.ContainerID, status(now))
		}
		text, err := sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/cudademo")
		if got := parse(text)["device.total_mib"]; err != nil || got != total {
			t.Errorf("Invariant 4: a new program in %s sees %s MiB, want %s: %v", p.Name, got, total, err)
		}
	}
}

// Invariant 2 and 4: with the node agent killed no container with a slice starts,
// running ones go on, and the waiting ones start by themselves once it is back.
func TestAgentKilled(t *testing.T) {
	running := awaitReady(t, create(t, newPod("before").share(10, 10).on(small)))
	check := unmoved(t, running)

	agent := sys.Node(small).Agent
	kill(t, agent)
	restart := onceBack(t, agent)
	waiting := create(t, newPod("meanwhile").share(10, 10).on(small))
	awaitEvent(t, waiting, "required plugin", v1alpha1.NRIPluginName)
	// The kubelet writes the status behind the event.
	told := awaitPod(t, waiting, "to have a container that waits", func(p *corev1.Pod) bool { return len(p.Status.ContainerStatuses) == 1 })
	if told.Status.ContainerStatuses[0].State.Running != nil {
		t.Error("Invariant 2: a container with a slice runs while the node agent is away")
	}
	check()
	restart()
	awaitReady(t, waiting)
	if got := values(t, waiting, "main"); got["device.total_mib"] == "" {
		t.Errorf("started after the agent came back, and sees %v", got)
	}
	check()
	awaitGuarantee(t, running, "main", v1alpha1.GuaranteeCooperative)
}

// A node whose agent hangs attracts nothing: the kubelet's probe finds it out, the ledger says
// so, and pods that could be there go elsewhere or wait. They are placed once it is back.
func TestAgentAway(t *testing.T) {
	agent := sys.Node(small).Agent
	reachable := func(status metav1.ConditionStatus) {
		t.Helper()
		await(t, "the ledger to say of the agent: "+string(status), func() (bool, string) {
			c := meta.FindStatusCondition(ledger(t, small).Status.Conditions, v1alpha1.ConditionAgentReachable)
			return c != nil && c.Status == status, fmt.Sprintf("%+v", c)
		})
	}
	reachable(metav1.ConditionTrue)
	freeze(t, agent)
	restart := onceBack(t, agent)
	reachable(metav1.ConditionFalse)
	waiting := create(t, newPod("away").share(10, 10).on(small))
	awaitEvent(t, waiting, "node(s) grant nothing now, such as "+small, "readiness probe")
	if elsewhere := awaitReady(t, create(t, newPod("elsewhere").share(10, 10))); elsewhere.Spec.NodeName == small {
		t.Errorf("a pod was placed on %s, whose agent is away", small)
	}
	restart()
	reachable(metav1.ConditionTrue)
	awaitReady(t, waiting)
}

// Invariant 2: the node agent dies while it is inside CreateContainer. On the large
// node, where no other of the parallel tests has a pod.
func TestAgentKilledInsideCreateContainer(t *testing.T) {
	t.Parallel()
	agent := sys.Node(large).Agent
	// Frozen, the agent does not read its socket: the request that waits there
	// shows that containerd is inside the call.
	freeze(t, agent)
	restart := onceBack(t, agent)
	p := create(t, newPod("inside").share(10, 10).on(large))
	await(t, "containerd to wait for the frozen agent", func() (bool, string) {
		n, err := sys.Node(large).UnreadNRI()
		return n > 0, fmt.Sprintf("%d bytes unread, %v", n, err)
	})
	kill(t, agent)
	awaitPod(t, p, "to have failed to create its container", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Reason, "Error")
	})
	if started := get(t, p).Status.ContainerStatuses[0]; started.State.Running != nil || started.LastTerminationState.Terminated != nil {
		t.Errorf("Invariant 2: the container started: %+v", started)
	}
	restart()
	awaitReady(t, p)
}

// Invariants 1 and 6: the allocator dies between its ledger write and its patch.
// A policy refuses the patch, so the death is certain to fall in between.
func TestAllocatorKilledBetweenLedgerAndPatch(t *testing.T) {
	allow := sys.RefusePodPatches(t)
	p := create(t, newPod("between").share(20, 20))
	await(t, "the grant in a ledger", func() (bool, string) {
		n := len(slicesOf(ledger(t, small), p.UID)) + len(slicesOf(ledger(t, large), p.UID))
		return n == 1, fmt.Sprint(n, " slices")
	})
	for _, a := range sys.Allocators {
		kill(t, a)
		defer onceBack(t, a)()
	}
	if get(t, p).Annotations[v1alpha1.AnnotationPlacement] != "" {
		t.Fatal("the patch went through, the test proves nothing")
	}
	allow()
	for _, a := range sys.Allocators {
		start(t, a)
	}
	awaitReady(t, p)
	onlyWhereItRuns(t, p.UID, get(t, p).Spec.NodeName)
}

// Invariants 1 and 6: the allocator dies between its patch and the binding.
func TestAllocatorKilledBetweenPatchAndBind(t *testing.T) {
	resume := sys.FreezeScheduler(t)
	defer resume()
	p := create(t, newPod("unbound").share(20, 20))
	awaitPod(t, p, "to be placed", func(p *corev1.Pod) bool { return len(p.Spec.SchedulingGates) == 0 })
	for _, a := range sys.Allocators {
		kill(t, a)
		defer onceBack(t, a)()
	}
	if get(t, p).Spec.NodeName != "" {
		t.Fatal("the pod was bound, the test proves nothing")
	}
	resume()
	awaitReady(t, p)
	for _, a := range sys.Allocators {
		start(t, a)
	}
	onlyWhereItRuns(t, p.UID, get(t, p).Spec.NodeName)
}

func onlyWhereItRuns(t *testing.T, uid types.UID, node string) {
	t.Helper()
	for _, n := range []string{small, large} {
		want := 0
		if n == node {
			want = 1
		}
		if got := slicesOf(ledger(t, n), uid); len(got) != want {
			t.Errorf("Invariant 6: ledger %s has %v, want %d slices (the pod runs on %s)", n, got, want, node)
		}
	}
}

// Invariant 1: the leader dies, the standby takes over, and nothing is granted twice.
func TestLeaderKilled(t *testing.T) {
	leader := sys.LeadingAllocator(t)
	kill(t, leader)
	defer onceBack(t, leader)()
	p := create(t, newPod("takeover").share(20, 20))
	awaitReady(t, p)
	onlyWhereItRuns(t, p.UID, get(t, p).Spec.NodeName)
}

// Invariant 4: restarts of kubelet and containerd under running pods.
func TestRuntimeRestarts(t *testing.T) {
	p := awaitReady(t, create(t, newPod("steady").share(25, 25).on(small)))
	check := unmoved(t, p)
	node := sys.Node(small)
	for what, restart := range map[string]func() error{
		"kubelet":    func() error { return node.RestartKubelet(t.Context()) },
		"containerd": func() error { return node.RestartContainerd(t.Context()) },
	} {
		if err := restart(); err != nil {
			t.Fatalf("restarting %s: %v", what, err)
		}
		// A pod created afterwards proves that the path works again.
		after := awaitReady(t, create(t, newPod("after-"+what).share(10, 10).on(small)))
		if got := values(t, after, "main"); got["device"] != "1" {
			t.Errorf("after the restart of %s a new pod sees %v", what, got)
		}
		check()
	}
}

// Invariant 4: a kubelet that starts over beside an ill device ends no pod. It would if
// the node's capacity were less than what its pods ask for.
func TestKubeletRestartsBesideAnIllDevice(t *testing.T) {
	p := awaitReady(t, create(t, newPod("on-ill").share(60, 60).on(small)))
	check := unmoved(t, p)
	device, gpus := deviceOf(t, p), sys.Node(small).GPU
	must.Do(t, gpus.Xid(device.UUID, 48))
	defer func() { // as a reset does
		must.Report(t, gpus.Lose(device.UUID))
		await(t, "the node to see the device off the bus", func() (bool, string) {
			reason := ledger(t, small).Status.Devices[0].Reason
			return strings.Contains(reason, "off the bus"), reason
		})
		must.Report(t, gpus.Recover(device.UUID))
		awaitHealth(t, small, device.UUID, true)
	}()
	awaitHealth(t, small, device.UUID, false)
	must.Do(t, sys.Node(small).RestartKubelet(t.Context()))
	awaitReady(t, create(t, newPod("plain-beside-ill").command("/bin/sleep", "1000").on(small)))
	check()
}

// The capacity of the node is put back at once when it is lost, as a kubelet that
// finds its device plugin folder empty loses it.
func TestCapacityIsPutBack(t *testing.T) {
	lose := []byte(`[{"op":"remove","path":"/status/capacity/vernier.dev~1gpu-core"},{"op":"remove","path":"/status/allocatable/vernier.dev~1gpu-core"}]`)
	must.Get(sys.Kube.CoreV1().Nodes().Patch(t.Context(), small, types.JSONPatchType, lose, metav1.PatchOptions{}, "status"))(t)
	await(t, "gpu-core to be back", func() (bool, string) {
		n, err := sys.Kube.CoreV1().Nodes().Get(t.Context(), small, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		c, a := n.Status.Capacity[v1alpha1.ResourceCore], n.Status.Allocatable[v1alpha1.ResourceCore]
		return c.Value() == 100 && a.Value() == 100, c.String() + " " + a.String()
	})
}

// Invariant 5: with every part of Vernier down a plain pod starts at once, in a
// labelled namespace too; Invariant 4: what runs goes on, and the same parts
// pick up where they were.
func TestEverythingDown(t *testing.T) {
	running := awaitReady(t, create(t, newPod("survivor").share(10, 10).on(small)))
	check := unmoved(t, running)
	for _, p := range sys.Parts() {
		kill(t, p)
		defer onceBack(t, p)()
	}
	awaitReady(t, create(t, newPod("plain").command("/bin/sleep", "1000").on(small)))
	asks := newPod("asks").share(10, 10)
	if made, err := sys.Kube.CoreV1().Pods(namespace).Create(t.Context(), &asks.Pod, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "webhook") {
		t.Errorf("a pod that asks while the webhook is down gets %v, %v", made, err)
	}
	check()
	for _, p := range sys.Parts() {
		start(t, p)
	}
	sys.AwaitServing(t)
	awaitReady(t, create(t, newPod("again").share(10, 10).on(small)))
	check()
}

// Invariants 2 and 4: while the API server is away what runs goes on, and a
// container that dies is started again, with its limits: the node has all it needs.
func TestAPIServerAway(t *testing.T) {
	p := newPod("alone").share(10, 10).on(small)
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	mortal := awaitReady(t, create(t, p))
	steady := awaitReady(t, create(t, newPod("steady").share(10, 10).on(small)))
	check := unmoved(t, steady)
	total := values(t, mortal, "main")["device.total_mib"]
	before := must.Get(containers(t, mortal))(t)

	back := sys.StopAPIServer(t)
	_, first, _ := strings.Cut(mortal.Status.ContainerStatuses[0].ContainerID, "://")
	if err := syscall.Kill(before[first], syscall.SIGKILL); err != nil {
		t.Fatalf("killing the container's process %d: %v", before[first], err)
	}
	await(t, "the kubelet to start the container again", func() (bool, string) {
		now, err := containers(t, mortal)
		for id := range now {
			if _, old := before[id]; !old {
				return true, ""
			}
		}
		return false, fmt.Sprint(now, err)
	})
	back()

	awaitPod(t, mortal, "to have restarted once and be ready", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Ready
	})
	if got := values(t, mortal, "main")["device.total_mib"]; got != total {
		t.Errorf("Invariant 2: restarted without the API server the container sees %s MiB, want %s", got, total)
	}
	check()
	awaitReady(t, create(t, newPod("after-api").share(10, 10).on(small)))
}

func containers(t *testing.T, p *corev1.Pod) (map[string]int, error) {
	return sys.Node(small).Containers(t.Context(), sys, p.UID)
}

// Invariant 5: a node agent that hangs, which is worse than one that is dead, does
// not keep a plain pod from starting.
func TestPlainPodBesideAFrozenAgent(t *testing.T) {
	agent := sys.Node(small).Agent
	freeze(t, agent)
	t.Cleanup(func() {
		kill(t, agent) // a new one is ready only once it is connected again
		start(t, agent)
		sys.AwaitServing(t)
	})
	awaitReady(t, create(t, newPod("unbothered").command("/bin/sleep", "1000").on(small)))
}

// A pod deleted while it starts leaves nothing: create's clean-up awaits it.
func TestDeletedWhileStarting(t *testing.T) {
	stages := map[string]func(*corev1.Pod) bool{
		"gated":  func(p *corev1.Pod) bool { return true },
		"placed": func(p *corev1.Pod) bool { return len(p.Spec.SchedulingGates) == 0 },
		"bound":  func(p *corev1.Pod) bool { return p.Spec.NodeName != "" },
	}
	for i := range 5 {
		t.Run(fmt.Sprint("round ", i), func(t *testing.T) {
			for stage, reached := range stages {
				t.Run(stage, func(t *testing.T) {
					t.Parallel()
					p := create(t, newPod(fmt.Sprintf("brief-%s-%d", stage, i)).share(30, 30).on(small))
					awaitPod(t, p, "to be "+stage, reached)
					remove(t, p)
				})
			}
		})
	}
	if l := ledger(t, small); len(l.Spec.Devices) > 0 {
		for _, d := range l.Spec.Devices {
			if len(d.Slices) > 0 {
				t.Errorf("Invariant 6: left in the ledger: %+v", d.Slices)
			}
		}
	}
}

func kill(t *testing.T, p *system.Process) {
	t.Helper()
	if err := p.Kill(); err != nil {
		t.Fatalf("killing %s: %v", p.Name, err)
	}
}

func freeze(t *testing.T, p *system.Process) {
	t.Helper()
	if err := p.Freeze(); err != nil {
		t.Fatalf("freezing %s: %v", p.Name, err)
	}
}

func start(t *testing.T, p *system.Process) {
	t.Helper()
	if err := p.EnsureRunning(); err != nil {
		t.Fatalf("starting %s: %v", p.Name, err)
	}
}

// onceBack starts the part again, at the latest when the test ends.
func onceBack(t *testing.T, p *system.Process) func() {
	t.Cleanup(func() { start(t, p) })
	return func() { start(t, p) }
}
