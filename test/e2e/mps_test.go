// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode/mps"
	"vernier.dev/vernier/test/must"
)

// mpsClient asks for a share that MPS holds, on a node.
func mpsClient(name, node string, core, mib int64) *pod {
	return newPod(name).limit(v1alpha1.ResourceCore, core).limit(v1alpha1.ResourceMemMiB, mib).
		annotate(v1alpha1.AnnotationMode, "mps").on(node)
}

// tryIn runs a script in the pod's main container, and returns what it says.
func tryIn(t *testing.T, p *corev1.Pod, script string) string {
	t.Helper()
	out, err := sys.Cluster.Exec(t.Context(), p.Namespace, p.Name, "main", "/bin/sh", "-c", script+" 2>&1")
	if err != nil {
		out += err.Error()
	}
	return out
}

// daemons are the PIDs of the node's MPS control daemons, which they write down
// themselves.
func daemons(t *testing.T, node string) []string {
	t.Helper()
	files := must.Get(filepath.Glob(filepath.Join(sys.Node(node).Dir(), "vernier", "lib", "mps", "GPU-*", "pipe", "nvidia-cuda-mps-control.pid")))(t)
	var pids []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // it has just ended
		}
		must.Do(t, err)
		pids = append(pids, strings.TrimSpace(string(text)))
	}
	return pids
}

// Shares in mode mps are clients of one server on their device, whoever their users
// are: each is held to its own limits, nobody else gets the device, the agent's death
// changes nothing, and with the last of them the device is what it was.
func TestMPS(t *testing.T) {
	keepComputeMode(t)
	one := awaitReady(t, create(t, mpsClient("mps-one", small, 30, 2048)))
	other := mpsClient("mps-other", small, 50, 1024)
	other.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(1000))}
	two := awaitReady(t, create(t, other))
	if placed := placement(t, one).Containers["main"]; placed.Mode != v1alpha1.ModeMPS {
		t.Errorf("placed %+v, want mode mps", placed)
	}
	for p, want := range map[*corev1.Pod]int64{one: 2048, two: 1024} {
		awaitGuarantee(t, p, "main", v1alpha1.GuaranteeCooperative)
		if got := values(t, p, "main"); got["device"] != "1" || !isFree(got, want) {
			t.Errorf("pod %s sees %v, want one device with %d MiB free", p.Name, got, want)
		}
		if said := tryIn(t, p, "cudademo --alloc 2100"); !strings.Contains(said, "CUDA_ERROR_OUT_OF_MEMORY") {
			t.Errorf("2100 MiB in pod %s: %s", p.Name, said)
		}
	}
	first := daemons(t, small)
	if len(first) != 1 {
		t.Errorf("daemons %v, want one", first)
	}
	awaitShared(t, small)
	// A device changes its mode when it is empty, and the pod is told what it waits for.
	beside := create(t, newPod("mps-beside").share(5, 5).on(small))
	awaitEvent(t, beside, "is shared by MPS")

	// Invariant 4: the next agent takes the daemon up, and nobody is touched.
	agent := sys.Node(small).Agent
	kill(t, agent)
	onceBack(t, agent)()
	three := awaitReady(t, create(t, mpsClient("mps-three", small, 10, 512)))
	if got := daemons(t, small); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("daemons %v after the agent's death, want %v", got, first)
	}
	for _, p := range []*corev1.Pod{one, two} {
		awaitGuarantee(t, p, "main", v1alpha1.GuaranteeCooperative)
		if c := get(t, p).Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Running == nil {
			t.Errorf("pod %s: %+v", p.Name, c)
		}
	}

	// One client's fault is everybody's: they are told.
	if *card != realCard {
		must.Do(t, sys.Node(small).GPU.MPS("0", "fault"))
		for _, p := range []*corev1.Pod{one, two, three} {
			awaitEvent(t, p, mps.ReasonFault, "have to start again")
		}
	}
	for _, p := range []*corev1.Pod{one, two, three} {
		remove(t, p)
	}
	awaitReady(t, beside)
	if got := daemons(t, small); len(got) != 0 {
		t.Errorf("daemons %v are left", got)
	}
	awaitGone(t, small)
}

// awaitShared waits until the node says that its first device is MPS'. It says so a
// moment after it is.
func awaitShared(t *testing.T, node string) {
	t.Helper()
	await(t, "the first device of node "+node+" to be shared by MPS", func() (bool, string) {
		d := ledger(t, node).Status.Devices[0]
		return d.MPS, fmt.Sprintf("%+v", d)
	})
}

// awaitGone waits until the node says that none of its devices is MPS'.
func awaitGone(t *testing.T, node string) {
	t.Helper()
	await(t, "node "+node+" to have no device that MPS shares", func() (bool, string) {
		for _, d := range ledger(t, node).Status.Devices {
			if d.MPS {
				return false, d.UUID
			}
		}
		return true, ""
	})
}

// What a tenant without privileges may try on a device that MPS shares, and what comes
// of it: nothing beyond the largest slice but by the one way that NVIDIA's clients
// leave open, and not even that where the driver holds the memory.
func TestMPSBypass(t *testing.T) {
	for _, node := range []string{small, large} {
		t.Run(node, func(t *testing.T) {
			held := ledger(t, node).Status.Driver.MemoryLimits
			neighbour := awaitReady(t, create(t, mpsClient("mps-neighbour-"+node, node, 40, 3072)))
			greedy := create(t, mpsClient("mps-greedy-"+node, node, 20, 1024).env("CUDA_MPS_PIPE_DIRECTORY", "/tmp").env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=80G").
				also(bystander("second")))
			want := v1alpha1.GuaranteeCooperative
			if held {
				want = v1alpha1.GuaranteeDriver
			}
			if got := values(t, greedy, "main"); !isFree(got, 1024) {
				t.Errorf("it sees %v, want 1024 MiB free", got)
			}
			awaitGuarantee(t, greedy, "main", want)
			if got := values(t, greedy, "second"); got["device"] != "" || got["error"] != "1" {
				t.Errorf("Invariant 3: a container without a share beside it sees %v", got)
			}
			if uuid := func(p *corev1.Pod) string { return placement(t, get(t, p)).Containers["main"].Devices[0].UUID }; uuid(greedy) != uuid(neighbour) {
				t.Fatal("they are not on one device")
			}
			if said := tryIn(t, neighbour, "busybox touch /dev/shm/neighbours"); said != "" {
				t.Errorf("a file in /dev/shm: %s", said)
			}
			const ok, out, refused = "ok=1", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_DEVICE_UNAVAILABLE"
			// Where the driver holds the memory, dropping a limit of MPS' gains nothing.
			soft := func(otherwise string) string {
				if held {
					return out
				}
				return otherwise
			}
			for _, try := range []struct{ script, want string }{
				{"cudademo --alloc 600", ok},
				{"cudademo --alloc 1100", out}, // the pod's own variables were taken out
				{"CUDA_MPS_PIPE_DIRECTORY=/tmp cudademo --alloc 1", refused},
				{"unset CUDA_MPS_PIPE_DIRECTORY; cudademo --alloc 1", refused},
				{"env -i /bin/cudademo --alloc 1", refused},
				{"ls -A /usr/local/vernier-mps | grep -v -x -e control -e log || echo nothing else", "nothing else"},
				{"busybox rm /usr/local/vernier-mps/control || busybox touch /usr/local/vernier-mps/x", "ead-only file system"},
				{"busybox umount /dev/shm", "not permitted"},
				// One user's files are his in whichever container, and both are root.
				{"busybox rm /dev/shm/neighbours && echo gone", "gone"},
				{"unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; cudademo --alloc 2900", soft(ok)},
				{"unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; cudademo --alloc 3100", out},
				{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G cudademo --alloc 3100", out},
				// The hole: limits on a device that isn't there void all of them.
				{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=7=1G cudademo --alloc 3100", soft(ok)},
			} {
				if said := tryIn(t, greedy, try.script); !strings.Contains(said, try.want) {
					t.Errorf("%q gives %q, want %q", try.script, said, try.want)
				}
			}
		})
		awaitGone(t, node)
	}
	two := mpsClient("mps-many", large, 10, 1024).limit(v1alpha1.ResourceGPUs, 2)
	if text := refused(t, two); !strings.Contains(text, "ask for one GPU") {
		t.Error(text)
	}
}
