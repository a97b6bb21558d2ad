// SPDX-License-Identifier: Apache-2.0

//go:build volcano

package volcano

import (
	"context"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// queue is a Queue of Volcano's that may use one GPU.
func queue(t *testing.T, name string) {
	t.Helper()
	apply(t, "default", `
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: `+name+`}
spec: {weight: 1, reclaimable: true, capability: {vernier.dev/gpu-core: 100}}
`)
	await(t, "the queue to open", func() (bool, string) {
		state := shell(t, "kubectl get queue %s -o jsonpath={.status.state}", name)
		return state == "Open", state
	})
	t.Cleanup(func() {
		_, err := sys.Shell(context.Background(), "kubectl delete queue "+name)
		must.Report(t, err)
	})
}

// A queue's capability holds a Job back, without pods, that asks for more than is left of it by its requests. One that
// has limits alone is not held back, but counts once its pods are bound.
func TestCapability(t *testing.T) {
	const ns, requests = "capability", `{requests: {vernier.dev/gpu-core: 50}, limits: {vernier.dev/gpu-core: 50}}`
	queue(t, "small")
	team(t, ns)
	heldBack := func(name string) {
		t.Helper()
		apply(t, ns, job(name, "  queue: small", task("worker", 2, forever, requests)))
		await(t, "Volcano to hold "+name+" back", func() (bool, string) {
			said := shell(t, "kubectl -n %s get events -o jsonpath='{range .items[*]}{.involvedObject.name} {.message}{\"\\n\"}{end}' | grep ^%s- || true", ns, name)
			return strings.Contains(said, "queue resource quota insufficient: insufficient vernier.dev/gpu-core"), said
		})
		if all := pods(t, ns, name); len(all) > 0 || holds(t, ns, name) > 0 {
			t.Errorf("%s has %d pods", name, len(all))
		}
	}
	apply(t, ns, job("first", "  queue: small", task("worker", 2, forever, requests)))
	awaitRunning(t, ns, "first", 2)
	heldBack("second")
	apply(t, ns, job("limits", "  queue: small", task("worker", 2, forever, half)))
	awaitRunning(t, ns, "limits", 2)
	shell(t, "kubectl -n %s delete vcjob first", ns)
	heldBack("third")
	shell(t, "kubectl -n %s delete vcjob limits third", ns)
	awaitRunning(t, ns, "second", 2)
}
