// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// burner always has kernels ready.
func burner(name string, core int64) *pod {
	return newPod(name).share(core, 10).on(small).args("--burn", "3600000", "--kernel-us", "1000")
}

// done is the device time that a pod's processes have used, as the device itself
// counts it, and the device's clock.
func done(t *testing.T, p *corev1.Pod) (used, now time.Duration) {
	t.Helper()
	state := gpuStatus(t, small)
	ids := containerIDs(get(t, p))
	for _, c := range state.Clients {
		if containsAny(c.Cgroup, ids) {
			used += time.Duration(c.DoneNS)
		}
	}
	return used, time.Duration(state.NowNS)
}

func gpuStatus(t *testing.T, node string) *simgpu.Status {
	t.Helper()
	state := must.Get(sys.Node(node).GPU.Status())(t)
	return state
}

// containerIDs are the runtime's.
func containerIDs(p *corev1.Pod) []string {
	var ids []string
	for _, c := range p.Status.ContainerStatuses {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// shares are the percents of the device's time that the pods get in the next four
// seconds of it.
func shares(t *testing.T, pods ...*corev1.Pod) []float64 {
	t.Helper()
	const window = 4 * time.Second
	before, begun, got := make([]time.Duration, len(pods)), make([]time.Duration, len(pods)), make([]float64, len(pods))
	for i, p := range pods {
		before[i], begun[i] = done(t, p)
	}
	await(t, "the device's clock to go on", func() (bool, string) {
		now := time.Duration(gpuStatus(t, small).NowNS)
		return now-begun[len(pods)-1] >= window, now.String()
	})
	for i, p := range pods {
		used, now := done(t, p)
		got[i] = 100 * float64(used-before[i]) / float64(now-begun[i])
	}
	return got
}

// tolerance of a share, in points.
const tolerance = 4

// busyPatience is how long shares are waited for: programs get theirs of a device only
// while the machine has time for them, all of them in the same few seconds.
const busyPatience = 5 * time.Minute

// Two pods that both always have work get what they were promised, by the device's
// own count. The device by itself would give each a half. A machine that is too
// busy to launch lowers what they get for a while, which they may make up for; so that
// is waited for, and more than the quota of all time since they were made is wrong
// whenever it is seen.
func TestTwoBusyPodsGetTheirShares(t *testing.T) {
	quotas := []float64{30, 60}
	var pods []*corev1.Pod
	var begun []time.Duration
	for _, q := range quotas {
		begun = append(begun, time.Duration(gpuStatus(t, small).NowNS))
		pods = append(pods, awaitReady(t, create(t, burner(fmt.Sprintf("busy-%.0f", q), int64(q)))))
	}
	awaitFor(t, busyPatience, "one to get 30 and the other 60 percent", func() (bool, string) {
		got, good := shares(t, pods...), true
		for i, share := range got {
			used, now := done(t, pods[i])
			if all := 100 * float64(used) / float64(now-begun[i]); all > quotas[i]+tolerance {
				t.Fatalf("with a quota of %.0f percent %s has had %.1f percent of the device", quotas[i], pods[i].Name, all)
			}
			good = good && math.Abs(share-quotas[i]) <= tolerance
		}
		return good, fmt.Sprintf("%.1f", got)
	})
}

// A pod that may use idle time gets more than its quota while it is alone, and its
// quota beside a neighbour, who gets all of its own. Invariant 4: while the node
// agent is away it goes on at its quota, and gets idle time again from the next.
func TestIdleTimeIsLentAndGivenBack(t *testing.T) {
	guest := awaitReady(t, create(t, burner("guest", 30).annotate(v1alpha1.AnnotationBurst, string(v1alpha1.BurstIdle))))
	lent := func() {
		t.Helper()
		awaitFor(t, busyPatience, "the guest to get idle time", func() (bool, string) {
			got := shares(t, guest)
			return got[0] > 60, fmt.Sprintf("%.1f", got)
		})
	}
	lent()

	owner := awaitReady(t, create(t, burner("owner", 60)))
	awaitFor(t, busyPatience, "the neighbour to get its 60 percent, and the guest what is left", func() (bool, string) {
		got := shares(t, guest, owner)
		return got[0] <= 40+tolerance && got[1] >= 60-tolerance, fmt.Sprintf("%.1f", got)
	})
	remove(t, owner)

	agent := sys.Node(small).Agent
	kill(t, agent)
	restart := onceBack(t, agent)
	await(t, "the guest to be back at its quota without the agent", func() (bool, string) {
		got := shares(t, guest)
		return got[0] <= 30+tolerance, fmt.Sprintf("%.1f", got)
	})
	restart()
	lent()
	if now := get(t, guest).Status.ContainerStatuses[0]; now.State.Running == nil || now.RestartCount != 0 {
		t.Errorf("Invariant 4: the guest did not survive: %+v", now)
	}
}

// Pods without a compute share beside one with 50 percent would have three quarters of the
// device by themselves: they have what it leaves. While the node agent is away each has no
// more than its part of that, and none hangs.
func TestHostileSharesWithoutCompute(t *testing.T) {
	owner := awaitReady(t, create(t, burner("paid", 50)))
	var all []*corev1.Pod
	for i := range 3 {
		all = append(all, awaitReady(t, create(t, burner(fmt.Sprintf("free-%d", i), 0))))
	}
	all = append(all, owner)
	awaitFor(t, busyPatience, "the one with a quota to get it, and the others the rest", func() (bool, string) {
		got := shares(t, all...)
		return math.Abs(got[3]-50) <= tolerance && got[0]+got[1]+got[2] >= 1, fmt.Sprintf("%.1f", got)
	})

	agent := sys.Node(small).Agent
	kill(t, agent)
	restart := onceBack(t, agent)
	await(t, "each of the others to have no more than its part of what is left, without the agent", func() (bool, string) {
		got, good := shares(t, all...), true
		for _, share := range got[:3] {
			good = good && share > 0 && share <= 50/3.+tolerance
		}
		return good && got[3] > got[0], fmt.Sprintf("%.1f", got)
	})
	restart()
	awaitFor(t, busyPatience, "the one with a quota to get it from the next agent", func() (bool, string) {
		got := shares(t, all...)
		return math.Abs(got[3]-50) <= tolerance, fmt.Sprintf("%.1f", got)
	})
}
