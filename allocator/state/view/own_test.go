// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
)

// ended is a pod that has its slices, with an init container, a sidecar and a container that
// have ended with these codes; -1 is one that runs, -2 one that has not started.
func ended(policy corev1.RestartPolicy, prepare, sidecar, main int32) corev1.Pod {
	status := func(name string, code int32) corev1.ContainerStatus {
		s := corev1.ContainerStatus{Name: name}
		switch code {
		case -2:
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
		case -1:
			s.State.Running = &corev1.ContainerStateRunning{}
		default:
			s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: code}
		}
		return s
	}
	placed := func(uuid string) string {
		return `{"mode":"limiter","devices":[{"uuid":"` + uuid + `","core":30,"memMiB":1024}]}`
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "uid-train", Annotations: map[string]string{
			v1alpha1.AnnotationPlacement: `{"version":"v1alpha1","node":"gpu-1","containers":{"main":` + placed("GPU-b") + `,"prepare":` + placed("GPU-a") + `,"sidecar":` + placed("GPU-a") + `}}`}},
		Spec: corev1.PodSpec{
			RestartPolicy:  policy,
			InitContainers: []corev1.Container{{Name: "prepare"}, {Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}},
			Containers:     []corev1.Container{{Name: "main"}},
		},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{status("prepare", prepare), status("sidecar", sidecar)},
			ContainerStatuses:     []corev1.ContainerStatus{status("main", main)},
		},
	}
}

func TestFinish_MarksOnlyContainersThatNeverStartAgain(t *testing.T) {
	ledger := []v1alpha1.SliceLedger{{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-a"}}}}}
	for _, name := range []string{"main", "prepare", "sidecar"} {
		d := &ledger[0].Spec.Devices[0]
		d.Slices = append(d.Slices, v1alpha1.Slice{Pod: "uid-train", Owner: "team-a/train", Ctr: name})
	}
	for _, tt := range []struct {
		name string
		pod  corev1.Pod
		want string
	}{
		{"nothing has started", ended(corev1.RestartPolicyAlways, -2, -2, -2), "[granted granted granted]"},
		{"init container completed", ended(corev1.RestartPolicyAlways, 0, -2, -2), "[granted finished granted]"},
		{"init container failed", ended(corev1.RestartPolicyAlways, 1, -2, -2), "[granted granted granted]"},
		{"sidecar ended", ended(corev1.RestartPolicyNever, 0, 0, -2), "[granted finished granted]"},
		{"container ended, Always", ended(corev1.RestartPolicyAlways, 0, -2, 0), "[granted finished granted]"},
		{"container completed, OnFailure", ended(corev1.RestartPolicyOnFailure, 0, -2, 0), "[finished finished granted]"},
		{"container failed, OnFailure", ended(corev1.RestartPolicyOnFailure, 0, -2, 1), "[granted finished granted]"},
		{"container failed, Never", ended(corev1.RestartPolicyNever, 0, -2, 1), "[finished finished granted]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := Slices(ledger, "")
			Finish(all, []corev1.Pod{tt.pod})
			if got := states(all); got != tt.want {
				t.Errorf("main, prepare, sidecar: %s, want %s", got, tt.want)
			}
		})
	}
	other := ended(corev1.RestartPolicyNever, 0, 0, 0)
	other.UID = "an earlier pod of the name"
	all := Slices(ledger, "")
	if Finish(all, []corev1.Pod{other}); states(all) != "[granted granted granted]" {
		t.Errorf("by the status of an earlier pod: %s", states(all))
	}
}

func TestSlicesOfPods(t *testing.T) {
	done, unplaced := ended(corev1.RestartPolicyNever, 0, 0, 0), ended(corev1.RestartPolicyNever, -2, -2, -2)
	done.Status.Phase, unplaced.Annotations = corev1.PodSucceeded, nil
	all := SlicesOfPods([]corev1.Pod{done, unplaced, ended(corev1.RestartPolicyAlways, 0, -1, -2)})
	if got := states(all); got != "[granted finished attached]" {
		t.Errorf("main, prepare, sidecar: %s", got)
	}
	want := Slice{Namespace: "team-a", Pod: "train", PodUID: "uid-train", Container: "main", Node: "gpu-1", UUID: "GPU-b",
		Core: 30, Mem: 1024, Mode: v1alpha1.ModeLimiter, State: StateGranted}
	if all[0] != want {
		t.Errorf("%+v, want %+v", all[0], want)
	}
}

func states(all []Slice) string {
	var states []string
	for _, s := range all {
		states = append(states, s.State)
	}
	return fmt.Sprint(states)
}
