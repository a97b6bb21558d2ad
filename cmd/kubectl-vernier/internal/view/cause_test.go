// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// placedPod has its place on node gpu-1, and is bound where node says so.
func placedPod(name, node string) corev1.Pod {
	p := gatedPod(name)
	p.Spec.SchedulingGates, p.Spec.NodeName = nil, node
	p.Annotations[v1alpha1.AnnotationPlacement] = `{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-a","core":10,"memMiB":10}]}}}`
	return p
}

func said(uid types.UID, reason string, at int64, count int32, message string) corev1.Event {
	e := eventOf(uid, at, message)
	e.Reason, e.Count = reason, count
	return e
}

// A failure is named before other warnings, the newest of the failures, and how often its
// reason has come.
func TestWhy_NamesTheFailureAndNotTheLastWarning(t *testing.T) {
	from := Evidence{Kubelet: []corev1.Event{
		said("p", "FailedMount", 1, 9, "older"),
		said("p", "FailedCreatePodSandBox", 2, 4, `no runtime for "x" is configured`),
		said("p", "FailedCreatePodSandBox", 3, 3, `no runtime for "nvidia" is configured`),
		said("p", "MissingClusterDNS", 5, 20, "no cluster DNS"),
		said("q", "MissingClusterDNS", 5, 0, "no cluster DNS"),
	}}
	for name, want := range map[string]string{
		"p": `it is on node gpu-1, pending; the kubelet says: FailedCreatePodSandBox (7 times): no runtime for "nvidia" is configured`,
		"q": "it is on node gpu-1, pending; the kubelet says: MissingClusterDNS: no cluster DNS",
	} {
		if got := Why([]corev1.Pod{placedPod(name, "gpu-1")}, from)[0].State; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// The reason why pods have failed is shown, once for all pods with the same reason, beside the pods that run.
func TestWhy_NamesWhyPodsHaveFailed(t *testing.T) {
	failed := func(name, reason, message string) corev1.Pod {
		p := placedPod(name, "gpu-1")
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: message}
		return p
	}
	drained, killed := failed("drained", "", ""), failed("killed", "", "")
	drained.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}}
	killed.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}
	running := placedPod("running", "gpu-1")
	running.Status.Phase = corev1.PodRunning
	gone := gatedPod("gated")
	gone.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Cancelled"}
	all := Why([]corev1.Pod{
		failed("a", "SysctlForbidden", `forbidden sysctl: "net.core.somaxconn" not allowlisted`),
		failed("b", "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 9000"),
		failed("c", "Evicted", "The node was low on resource: memory, available: 93Mi"),
		failed("d", "Evicted", "The node was low on resource: memory, available: 71Mi"),
		drained, killed, running, gone,
	}, Evidence{})
	want := []string{
		`Pod ns/a: it has failed on node gpu-1: SysctlForbidden: forbidden sysctl: "net.core.somaxconn" not allowlisted`,
		"Pod ns/b: it has failed on node gpu-1: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: 9000",
		"2 pods, such as ns/c: it has failed on node gpu-1: Evicted: The node was low on resource: memory, available: 93Mi",
		"Pod ns/drained: it has failed on node gpu-1: EvictionByEvictionAPI: Eviction API: evicting",
		"Pod ns/killed: it has failed on node gpu-1: container main ended with exit code 137: OOMKilled",
		"Pod ns/gated: it has failed on node (none): Cancelled",
	}
	groups := Group(all)
	for i := range max(len(groups), len(want)) {
		if i >= len(groups) || i >= len(want) || groups[i].Heading() != want[i] {
			t.Fatalf("%d: %+v, want %q", i, groups, want)
		}
	}
	if got, want := Summary(all), "8 pods: 1 running, 7 failed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A placed pod that no scheduler touches is told from one that a scheduler works on.
func TestWhy_WhenNoSchedulerTouchesThePod(t *testing.T) {
	const (
		place  = "it has its place on node gpu-1, and "
		nobody = place + `no scheduler "volcano" has looked at it since: start that scheduler, or delete the pod and create it with schedulerName default-scheduler`
		silent = place + "the scheduler has not bound it yet: `kubectl describe pod` says why"
	)
	placed := time.Unix(1000, 0)
	for _, tt := range []struct {
		name string
		edit func(*corev1.Pod, *Evidence)
		want string
	}{
		{"for a while", func(*corev1.Pod, *Evidence) {}, nobody},
		{"the default one", func(p *corev1.Pod, _ *Evidence) { p.Spec.SchedulerName = "" }, place + `no scheduler "default-scheduler" has looked at it since: start that scheduler`},
		{"for some seconds", func(_ *corev1.Pod, e *Evidence) { e.Now = placed.Add(29 * time.Second) }, silent},
		{"what the API server says of a gate", func(p *corev1.Pod, _ *Evidence) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}
		}, nobody},
		{"its condition", func(p *corev1.Pod, _ *Evidence) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulerError, Message: "running PreBind plugin"}}
		}, place + "the scheduler has not bound it yet: running PreBind plugin"},
		{"its event", func(_ *corev1.Pod, e *Evidence) {
			e.Schedulers = []corev1.Event{said("p", "FailedScheduling", 1001, 0, "0/1 nodes"), said("other", "FailedScheduling", 1002, 0, "of another")}
		}, place + "the scheduler has not bound it yet: FailedScheduling: 0/1 nodes"},
		{"its event before", func(_ *corev1.Pod, e *Evidence) {
			e.Schedulers = []corev1.Event{said("p", "FailedScheduling", 999, 0, "it is gated")}
		}, nobody},
		{"its nomination", func(p *corev1.Pod, _ *Evidence) { p.Status.NominatedNodeName = "gpu-1" }, silent},
		{"its choice of a node for a volume", func(p *corev1.Pod, e *Evidence) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
			claim := claimOf("data", "fast")
			claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "gpu-1"}
			e.Claims = map[string]Claim{"data": {Object: claim}}
		}, silent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, from := placedPod("p", ""), Evidence{Now: placed.Add(time.Minute)}
			p.Spec.SchedulerName, p.CreationTimestamp = "volcano", metav1.Unix(0, 0)
			p.ManagedFields = []metav1.ManagedFieldsEntry{
				{Time: &metav1.Time{Time: placed}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:vernier.dev/placement":{}}}}`)},
				{Time: &metav1.Time{Time: placed.Add(time.Hour)}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)}}
			tt.edit(&p, &from)
			if got := Why([]corev1.Pod{p}, from)[0].State; got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
