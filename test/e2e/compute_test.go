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
	state, err := sys.Node(node).GPU.Status()
	if err != nil {
		t.Fatal(err)
	}
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

// Two pods that both always have work get what they were promised, by the device's
// own count. The device by itself would give each a half. A machine that is too
// busy to launch lowers what they get for a while, so that is waited for; more
// than the quota is wrong whenever it is seen.
func TestTwoBusyPodsGetTheirShares(t *testing.T) {
	const window = 4 * time.Second
	quotas := []int64{30, 60}
	var pods []*corev1.Pod
	for _, q := range quotas {
		pods = append(pods, awaitReady(t, create(t, burner(fmt.Sprintf("busy-%d", q), q))))
	}
	await(t, "both to work the device", func() (bool, string) {
		for _, p := range pods {
			if used, _ := done(t, p); used == 0 {
				return false, p.Name + " has not begun"
			}
		}
		return true, ""
	})
	from, begun := make([]time.Duration, len(pods)), make([]time.Duration, len(pods))
	await(t, "a window in which one gets 30 and the other 60 percent", func() (bool, string) {
		good, text := true, ""
		for i, p := range pods {
			used, now := done(t, p)
			if begun[i] == 0 || now-begun[i] < window {
				if begun[i] == 0 {
					from[i], begun[i] = used, now
				}
				good = false
				continue
			}
			share := 100 * float64(used-from[i]) / float64(now-begun[i])
			from[i], begun[i] = used, now
			text += fmt.Sprintf("%s: %.1f percent; ", p.Name, share)
			if share > float64(quotas[i])+4 {
				t.Fatalf("with a quota of %d percent %s got %.1f percent of the device", quotas[i], p.Name, share)
			}
			good = good && math.Abs(share-float64(quotas[i])) <= 4
		}
		return good, text
	})
}
