// SPDX-License-Identifier: Apache-2.0

//go:build volcano

// Package volcano owns the proof that a real Volcano and Vernier work side by side: the pods of a Job of Volcano's
// get their slices together, kube-scheduler binds them, and Volcano's controllers, plugins and queues do what they do
// alone. Its tests share one cluster, each has a namespace.
package volcano

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

// patience bounds each wait: Volcano looks at its queues once a second, and the machine may be busy.
const patience = 5 * time.Minute

var sys *system.System

// ready waits until Volcano has made its queue and opened it, and Vernier has seen that there are PodGroups now: before
// that each pod starts alone.
const ready = `
kubectl wait --for=create --timeout=2m queue/default
kubectl wait --for=jsonpath={.status.state}=Open --timeout=2m queue/default
kubectl -n ready apply -f - <<E
apiVersion: v1
kind: Pod
metadata: {name: early, annotations: {scheduling.k8s.io/group-name: none}}
spec:
  nodeSelector: {no: node}
  containers: [{name: main, image: none, resources: {limits: {vernier.dev/gpu-core: 10}}}]
E
timeout 120 sh -c "until kubectl -n ready get events -o jsonpath='{.items[*].message}' | grep 'PodGroup ready/none .*does not exist'; do sleep 0.5; done"
kubectl -n ready delete pod early`

// Two nodes of two GPUs.
func TestMain(m *testing.M) {
	flag.Parse()
	a100 := simgpu.GPU{Model: simgpu.A100}
	os.Exit(system.Main(m, system.Options{Name: "volcano", Nodes: []system.NodeOptions{
		{Name: "gpu-1", GPUs: a100, More: []simgpu.GPU{a100}}, {Name: "gpu-2", GPUs: a100, More: []simgpu.GPU{a100}},
	}}, func(ctx context.Context, s *system.System) error {
		sys = s
		if err := s.InstallGuest(ctx, "volcano"); err != nil {
			return err
		}
		if err := s.Namespaces(ctx, map[string]bool{"ready": true}); err != nil {
			return err
		}
		if out, err := s.Shell(ctx, ready); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}

// await waits until something is so.
func await(t *testing.T, what string, check func() (bool, string)) {
	t.Helper()
	system.Await(t, patience, what, func(context.Context) (bool, string) { return check() })
}

// shell runs what a person types, and returns what it prints.
func shell(t *testing.T, format string, a ...any) string {
	t.Helper()
	out, err := sys.Shell(t.Context(), fmt.Sprintf(format, a...))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// team is a namespace that is empty when the test ends.
func team(t *testing.T, name string) {
	t.Helper()
	must.Do(t, sys.Namespaces(t.Context(), map[string]bool{name: true}))
	t.Cleanup(func() {
		in := "kubectl -n " + name
		if t.Failed() {
			said, _ := sys.Shell(context.Background(), in+" get vcjob,podgroups,pods -o wide; "+in+" get events --sort-by=.lastTimestamp | tail -30")
			t.Log(said)
		}
		out, err := sys.Shell(context.Background(), in+" delete vcjob --all; "+in+" delete pods --all; "+
			"while kubectl get sliceledgers -o yaml | grep -q 'owner: "+name+"/'; do sleep 0.2; done")
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// apply applies manifests in a namespace.
func apply(t *testing.T, namespace, text string) {
	t.Helper()
	shell(t, "kubectl -n %s apply -f - <<'E'\n%s\nE", namespace, text)
}

// job is a Job of Volcano's with these tasks, and more of its spec.
func job(name, spec string, tasks ...string) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  schedulerName: default-scheduler
%s
  tasks:%s
---`, name, spec, strings.Join(tasks, ""))
}

// task is one template of a Job, whose container runs a script with these resources.
func task(name string, replicas int, script, resources string, more ...string) string {
	return fmt.Sprintf(`
  - name: %s
    replicas: %d
    %s
    template:
      spec:
        restartPolicy: Never
        terminationGracePeriodSeconds: 1
        containers:
        - name: main
          image: %s
          command:
          - /bin/sh
          - -c
          - |
            %s
          env: [{name: RUN, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['volcano.sh/job-version']"}}}]
          resources: %s`, name, replicas, strings.Join(more, "\n    "), system.DemoImage, strings.ReplaceAll(script, "\n", "\n            "), resources)
}

const (
	whole   = `{limits: {vernier.dev/gpu-core: 100}}`
	half    = `{limits: {vernier.dev/gpu-core: 50}}`
	forever = "trap exit TERM; while :; do sleep 3600 & wait $!; done"
)

// phase is what Volcano says of a Job.
func phase(t *testing.T, namespace, job string) string {
	t.Helper()
	return shell(t, "kubectl -n %s get vcjob %s -o jsonpath={.status.state.phase}", namespace, job)
}

func awaitPhase(t *testing.T, namespace, job, want string) {
	t.Helper()
	await(t, job+" to be "+want, func() (bool, string) {
		now := phase(t, namespace, job)
		return now == want, now + "\n" + shell(t, "kubectl -n %s get pods,podgroups -o wide", namespace)
	})
}

// pods are those of a Job.
func pods(t *testing.T, namespace, job string) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	must.Do(t, sys.Client.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{"volcano.sh/job-name": job}))
	return list.Items
}

// awaitRunning waits until so many pods of a Job run, and none else is there.
func awaitRunning(t *testing.T, namespace, job string, want int) {
	t.Helper()
	await(t, fmt.Sprintf("%d pods of %s to run", want, job), func() (bool, string) {
		running, text := 0, ""
		all := pods(t, namespace, job)
		for _, p := range all {
			text += fmt.Sprintf("%s %s gates %v node %s; ", p.Name, p.Status.Phase, p.Spec.SchedulingGates, p.Spec.NodeName)
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running++
			}
		}
		return running == want && len(all) == want, text
	})
}

// held is how many slices a ledger grants to the pods of a Job.
func held(l *v1alpha1.SliceLedger, namespace, job string) (n int) {
	for _, d := range l.Spec.Devices {
		for _, s := range d.Slices {
			if strings.HasPrefix(s.Owner, namespace+"/"+job+"-") {
				n++
			}
		}
	}
	return n
}

// holds is the same of all ledgers.
func holds(t *testing.T, namespace, job string) (n int) {
	t.Helper()
	all := &v1alpha1.SliceLedgerList{}
	must.Do(t, sys.Client.List(t.Context(), all))
	for i := range all.Items {
		n += held(&all.Items[i], namespace, job)
	}
	return n
}
