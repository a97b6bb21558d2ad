// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"context"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// gangs are examples of pods that start together, with half of a GPU each. Beside another pod there is room
// for all but one of them: then so many start, and something says why the others don't.
var gangs = map[string]struct {
	pods, start int
	says, why   string
}{
	"gang":            {4, 0, "events", "room for 3 of the 4 pods that must start together"},
	"jobset":          {4, 0, "events", "room for 3 of the 4 pods that must start together"},
	"ray":             {4, 0, "events", "room for 3 of the 4 pods that must start together"},
	"trainer":         {4, 0, "events", "room for 3 of the 4 pods that must start together"},
	"leaderworkerset": {4, 2, "workloads", "1 of 2"},
}

// checkTogether applies an example where all of its pods but one have room, and then makes room for that one.
func checkTogether(t *testing.T, sys *system.System, name string) {
	g, ok := gangs[name]
	if !ok {
		return
	}
	const other = `
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: vernier.local/cudademo:1
    command: [/bin/cudademo, --hold]
    resources: {limits: {vernier.dev/gpu-core: 25}}
`
	const owners = "kubectl get sliceledgers -o jsonpath='{.items[*].spec.devices[*].slices[*].owner}'"
	shell := func(command string) string {
		out, err := sys.Shell(t.Context(), command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	shell("kubectl apply -f - <<'E'" + other + "E")
	t.Cleanup(func() {
		_, err := sys.Shell(context.Background(), "kubectl delete --ignore-not-found pod other")
		must.Report(t, err)
	})
	eventually(t, "the other pod to be placed", func(context.Context) (bool, string) {
		out := shell(owners)
		return len(strings.Fields(out)) == 1, out
	})
	shell("kubectl apply -f docs/examples/" + name)
	eventually(t, "the last pod to wait, with its gang", func(context.Context) (bool, string) {
		out, said := shell(owners), shell("kubectl get "+g.says+" -o jsonpath='{..message}'")
		return len(strings.Fields(out)) == 1+g.start && strings.Contains(said, g.why), out + "\n" + said
	})
	shell("kubectl delete pod other")
	eventually(t, "all pods to be placed", func(context.Context) (bool, string) {
		out := shell(owners)
		return len(strings.Fields(out)) == g.pods, out
	})
	shell("kubectl delete -f docs/examples/" + name)
	eventually(t, "the pods to end", func(context.Context) (bool, string) {
		out := shell("kubectl get pods -o name; " + owners)
		return out == "", out
	})
}
