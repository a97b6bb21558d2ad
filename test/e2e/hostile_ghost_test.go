// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/test/must"
)

// A pod that ignores SIGTERM is deleted with a long grace and then by force. The kubelet waits
// for the first grace, the API server and quota forget the pod at once. Its containers end, all
// processes of theirs, and its slices go back.
func TestHostileGhostIsEnded(t *testing.T) {
	p := newPod("ghost").share(10, 10).on(small).command("/bin/sh", "-c", "trap '' TERM; busybox setsid sleep 1000 & while :; do sleep 1; done")
	p.Spec.TerminationGracePeriodSeconds, p.Spec.ShareProcessNamespace = ptr(int64(3)), ptr(true)
	made := awaitReady(t, create(t, p))
	pods := sys.Kube.CoreV1().Pods(made.Namespace)
	await(t, "its processes", func() (bool, string) {
		all := processesOf(t, made.UID)
		return len(all) >= 3, fmt.Sprint(all)
	})
	err := pods.Delete(t.Context(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(100_000_000))})
	if err == nil || !strings.Contains(err.Error(), "the 3 s of its spec.terminationGracePeriodSeconds at most to end") {
		t.Errorf("a grace of years: %v", err)
	}
	// What an administrator may still do.
	must.Do(t, pods.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: made.ObjectMeta, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(3600))}}))
	awaitEvent(t, made, "Killing")
	must.Do(t, pods.Delete(t.Context(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	if _, err := pods.Get(t.Context(), made.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the pod is there: %v", err)
	}
	if all := processesOf(t, made.UID); len(all) < 3 {
		t.Fatalf("the kubelet did not wait: %v", all)
	}
	awaitEvent(t, made, "OrphanedContainer", "container main", "3s")
	await(t, "its processes to end", func() (bool, string) {
		all := processesOf(t, made.UID)
		return len(all) == 0, fmt.Sprint(all)
	})
	await(t, "its slices to be released", func() (bool, string) {
		held := slicesOf(ledger(t, small), made.UID)
		return len(held) == 0, fmt.Sprint(held)
	})
	series := fmt.Sprintf("vernier_node_orphaned_containers_ended_total{node=%q} ", small)
	if text, err := sys.Node(small).Agent.Metrics(t.Context()); err != nil || !strings.Contains(text, series) || strings.Contains(text, series+"0\n") {
		t.Errorf("the metrics lack %s: %v", series, err)
	}
	awaitReady(t, create(t, newPod("next").share(10, 10).on(small)))
}

// processesOf are the numbers of a pod's processes on this machine, whatever has become of its
// containers.
func processesOf(t *testing.T, pod types.UID) (all []string) {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cgroup"))(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && (strings.Contains(string(text), string(pod)) || strings.Contains(string(text), strings.ReplaceAll(string(pod), "-", "_"))) {
			all = append(all, filepath.Base(filepath.Dir(file)))
		}
	}
	return all
}
