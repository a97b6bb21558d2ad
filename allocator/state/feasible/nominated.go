// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Nominate notes the node on which the scheduler preempts for a pod that is
// counted nowhere, none where it has no such node. Like the scheduler, the filters keep
// that room from pods of the same or of lower priority. It reports whether that may change
// the answer for other pods.
func (f *Filters) Nominate(pod *corev1.Pod, node string) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.nominatedTo[pod.UID]
	if was != "" {
		delete(f.nominatedTo, pod.UID)
		if delete(f.nominated[was], pod.UID); len(f.nominated[was]) == 0 {
			delete(f.nominated, was)
		}
	}
	if node == "" {
		return was != "", nil
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return was != "", fmt.Errorf("nominated pod: %w", err)
	}
	if f.nominated[node] == nil {
		f.nominated[node] = map[types.UID]fwk.PodInfo{}
	}
	f.nominated[node][pod.UID], f.nominatedTo[pod.UID] = info, node
	return was != node, nil
}

// nominator shows the filters the nominated pods. They write nothing to it.
type nominator struct{ *Filters }

func (n nominator) NominatedPodsForNode(node string) []fwk.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.nominated[node]))
}

func (nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (nominator) DeleteNominatedPodIfExists(*corev1.Pod)                        {}
func (nominator) UpdateNominatedPod(klog.Logger, *corev1.Pod, fwk.PodInfo)      {}
