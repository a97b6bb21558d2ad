// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode/mps"
	"vernier.dev/vernier/test/must"
)

// mpsMounts are the file systems of MPS' shared memory that a process sees mounted, by
// their device numbers: a node's state directory has two paths.
func mpsMounts(t *testing.T, process any) map[string]string {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%v/mountinfo", process)))(t)
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.Contains(line, "vernier-mps") {
			found[fields[2]] += fields[4] + " "
		}
	}
	return found
}

// The containers on one GPU have one /dev/shm, which its MPS server has too, whoever their
// users are; another GPU's have another, and the node has nothing of either. The agent's
// death changes none of it, and with the last share all of it is gone.
func TestMPSSharedMemory(t *testing.T) {
	idle := func(name string, core int64, uid int64) *corev1.Pod {
		p := mpsClient(name, large, core, 1024).command("/bin/sleep", "3600")
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(uid)}
		return awaitReady(t, create(t, p))
	}
	one, two := idle("shm-one", 30, 1000), idle("shm-two", 40, 1001)
	apart := idle("shm-apart", 80, 1000) // there is no room for it beside them
	on := func(p *corev1.Pod) string { return placement(t, get(t, p)).Containers["main"].Devices[0].UUID }
	if on(one) != on(two) || on(one) == on(apart) {
		t.Fatalf("they are on %s, %s and %s", on(one), on(two), on(apart))
	}
	const mark = "/dev/shm/vernier-mark"
	if said := tryIn(t, one, "busybox touch "+mark); said != "" {
		t.Fatal(said)
	}
	same := func() {
		t.Helper()
		for _, p := range []*corev1.Pod{one, two, apart} {
			if said := tryIn(t, p, "cudademo --alloc 800"); !strings.Contains(said, "ok=1") {
				t.Errorf("pod %s: %s", p.Name, said)
			}
			files := tryIn(t, p, "ls -A /dev/shm")
			if strings.Contains(files, "vernier-mark") != (p != apart) || strings.Count(files, "cuda.shm.") != 1 {
				t.Errorf("pod %s has %q in its /dev/shm", p.Name, files)
			}
		}
	}
	same()
	if said := tryIn(t, two, "busybox rm -f "+mark); !strings.Contains(said, "not permitted") {
		t.Errorf("another user removes a file: %q", said)
	}
	if said := tryIn(t, one, "busybox mount"); !strings.Contains(said, "on /dev/shm type tmpfs (rw,nosuid,nodev,noexec") {
		t.Errorf("mounted are %s", said)
	}
	if _, err := os.Stat(mark); !os.IsNotExist(err) {
		t.Errorf("it is in the node's /dev/shm: %v", err)
	}
	agent := sys.Node(large).Agent
	before := mpsMounts(t, agent.ID().PID)
	if len(before) != 2 {
		t.Errorf("the node has %q", before)
	}
	kill(t, agent)
	onceBack(t, agent)()
	next := idle("shm-next", 5, 1002)
	if now := mpsMounts(t, agent.ID().PID); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("after the agent's death the node has %q, want as before %q", now, before)
	}
	if files := tryIn(t, next, "ls -A /dev/shm"); on(next) == on(one) && !strings.Contains(files, "vernier-mark") {
		t.Errorf("the next one has %q in its /dev/shm", files)
	}
	same()

	// A volume of its own there would be everybody's.
	volume := mpsClient("shm-own", large, 1, 1024)
	volume.Spec.Volumes = []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	volume.Spec.Containers[0].VolumeMounts = append(volume.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "shm", MountPath: mps.SharedMemory})
	if text := refused(t, volume); !strings.Contains(text, "Remove the mount") {
		t.Error(text)
	}

	for _, p := range []*corev1.Pod{one, two, apart, next} {
		if g := slicesOf(ledger(t, large), p.UID); len(g) != 1 || g[0].Mode != v1alpha1.ModeMPS {
			t.Errorf("pod %s has %+v", p.Name, g)
		}
		remove(t, p)
	}
	awaitGone(t, large)
	for _, process := range []any{agent.ID().PID, sys.Node(large).Containerd.ID().PID, "self"} {
		if left := mpsMounts(t, process); len(left) != 0 {
			t.Errorf("process %v still has %q", process, left)
		}
	}
}
