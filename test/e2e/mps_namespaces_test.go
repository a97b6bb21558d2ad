// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode/mps"
)

// onlyItsPart checks that a program of the pod may use that part of the device's
// multiprocessors, in whole pairs, whatever its environment asks for, and gets no more of
// the device than that. A busy machine can lower what it gets, so that has no lower bound.
func onlyItsPart(t *testing.T, p *corev1.Pod, percent float64) {
	t.Helper()
	const ofH100 = 132 // multiprocessors
	got := parse(tryIn(t, p, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 cudademo --burn 400 --kernel-us 1000"))
	sms, err := strconv.ParseFloat(got["device.multiprocessors"], 64)
	if part := 100 * sms / ofH100; err != nil || part > percent || part < percent-4 {
		t.Errorf("pod %s may use %.1f %% of the multiprocessors, want %v: %v", p.Name, part, percent, got)
	}
	if share, err := strconv.ParseFloat(got["burn.share_percent"], 64); err != nil || share > percent {
		t.Errorf("pod %s got %.1f %% of the device, want at most %v: %v", p.Name, share, percent, got)
	}
}

// With a driver of protocol 3 each slice has a namespace of its own: its limits hold
// whatever the environment says, beside a larger slice, over the agent's death; a user who
// is not root cannot change them, and what root has ended is there again.
func TestMPSNamespaces(t *testing.T) {
	// What holds a context would keep the next server's clients out after the end of its own.
	idle := func(name string, core, mib int64) *pod {
		return mpsClient(name, large, core, mib).command("/bin/sleep", "3600")
	}
	one := awaitReady(t, create(t, idle("v3-one", 30, 2048)))
	other := idle("v3-other", 60, 1024)
	other.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(1000))}
	two := awaitReady(t, create(t, other))
	both := map[*corev1.Pod]struct {
		mib  int64
		core float64
	}{one: {2048, 30}, two: {1024, 60}}
	held := func() {
		t.Helper()
		for p, want := range both {
			awaitGuarantee(t, p, "main", v1alpha1.GuaranteeDriver)
			if got := parse(tryIn(t, p, "cudademo")); !isFree(got, want.mib) {
				t.Errorf("pod %s sees %v, want %d MiB free", p.Name, got, want.mib)
			}
			onlyItsPart(t, p, want.core)
		}
	}
	held()
	for p, says := range map[*corev1.Pod]string{one: "runAsUser", two: "no multiprocessor is the slice's alone"} {
		if s := slicesOf(ledger(t, large), p.UID); len(s) != 1 {
			t.Fatalf("pod %s has %+v", p.Name, s)
		}
		for _, s := range ledger(t, large).Status.Slices {
			if s.Pod == p.UID && !strings.Contains(s.Note, says) {
				t.Errorf("pod %s: %q, want %q", p.Name, s.Note, says)
			}
		}
	}

	// Who is not root may look, and change nothing.
	const control = "/usr/bin/nvidia-cuda-mps-control "
	own := strings.Fields(strings.ReplaceAll(tryIn(t, two, control+"namespace list --format=csv,noheader"), ",", " "))
	var space string
	for _, word := range own {
		if strings.Contains(word, "/pipe/vernier/s") {
			space = word[strings.LastIndexByte(word, '/')+1:]
		}
	}
	for _, try := range []string{
		"namespace set " + space + " --server=vernier --active-thread-percentage=100",
		"namespace create mine --server=vernier", "namespace delete " + space + " --server=vernier --force",
		"server set vernier --active-thread-percentage=100", "server create mine", "server delete vernier --force",
		"sm-partition create mine --server=vernier --device=0 --chunks=1", "quit",
	} {
		if said := tryIn(t, two, control+try); !strings.Contains(said, "Insufficient privileges") && !strings.Contains(said, "only UID 0") {
			t.Errorf("%q gives %q", try, said)
		}
	}

	// Invariant 4: the next agent takes up daemon, server and namespaces.
	first := daemons(t, large)
	agent := sys.Node(large).Agent
	kill(t, agent)
	onceBack(t, agent)()
	next := awaitReady(t, create(t, idle("v3-next", 5, 512)))
	if got := daemons(t, large); len(first) != 1 || fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("daemons %v after the agent's death, want %v", got, first)
	}
	held()

	// Root of the node may command the daemon, and root of a container without a user
	// namespace is that. What it changes is seen, and put right.
	tryIn(t, one, control+"server delete vernier --force")
	awaitEvent(t, two, mps.ReasonLost, "device")
	for p := range both { // one namespace after the other
		await(t, "the next server to serve pod "+p.Name, func() (bool, string) {
			said := tryIn(t, p, "cudademo --alloc 800")
			return strings.Contains(said, "ok=1"), said
		})
	}
	held()
	for _, p := range []*corev1.Pod{one, two, next} {
		remove(t, p)
	}
	awaitGone(t, large)
	if got := daemons(t, large); len(got) != 0 {
		t.Errorf("daemons %v are left", got)
	}
}
