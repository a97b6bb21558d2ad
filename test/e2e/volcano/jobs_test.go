// SPDX-License-Identifier: Apache-2.0

//go:build volcano

package volcano

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/docs"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// Each of two Jobs needs three of the four GPUs. One runs and then the other, and no part of a Job ever holds a
// slice that the other could use.
func TestOneAfterTheOther(t *testing.T) {
	const ns = "turns"
	team(t, ns)
	watching := must.Get(client.NewWithWatch(sys.Cluster.REST, client.Options{Scheme: sys.Client.Scheme()}))(t)
	changes := must.Get(watching.Watch(t.Context(), &v1alpha1.SliceLedgerList{}))(t)
	both := make(chan string, 1)
	go func() {
		// All ledgers are of one resource, so their changes come in the order in which they were made.
		ledgers, seen := map[string]*v1alpha1.SliceLedger{}, ""
		for c := range changes.ResultChan() {
			if l, is := c.Object.(*v1alpha1.SliceLedger); is {
				ledgers[l.Name] = l
			}
			a, b := 0, 0
			for _, l := range ledgers {
				a, b = a+held(l, ns, "a"), b+held(l, ns, "b")
			}
			if a > 0 && b > 0 {
				seen = fmt.Sprintf("a held %d and b %d", a, b)
			}
		}
		both <- seen
	}()
	until := "until [ -e /tmp/end ]; do sleep 0.2; done"
	apply(t, ns, job("a", "", task("worker", 3, until, whole))+job("b", "", task("worker", 3, until, whole)))
	first, second := "a", "b"
	await(t, "one of the Jobs to run", func() (bool, string) {
		a, b := phase(t, ns, "a"), phase(t, ns, "b")
		if b == "Running" {
			first, second = "b", "a"
		}
		return a == "Running" || b == "Running", a + b
	})
	awaitRunning(t, ns, first, 3)
	await(t, "the other to wait", func() (bool, string) {
		said := shell(t, "kubectl -n %s get events -o jsonpath='{.items[*].message}'", ns)
		return strings.Contains(said, "room for 1 of the 3 pods that must start together"), said
	})
	if n := holds(t, ns, second); n > 0 || phase(t, ns, second) == "Running" {
		t.Errorf("%s holds %d slices beside %s", second, n, first)
	}
	changes.Stop()
	if text := <-both; text != "" {
		t.Error(text)
	}
	for _, p := range pods(t, ns, first) {
		shell(t, "kubectl -n %s exec %s -- touch /tmp/end", ns, p.Name)
	}
	awaitPhase(t, ns, first, "Completed")
	awaitRunning(t, ns, second, 3)
}

// A Job of two templates has its hosts, keys and indices from Volcano's plugins. A worker that fails has the whole Job
// run again, and the last worker ends it.
func TestTemplatesPluginsAndRestart(t *testing.T) {
	const ns = "templates"
	team(t, ns)
	const worker = `cat /etc/volcano/worker.host; echo
(cd /root && test -s .ssh/id_rsa) || exit 3
echo index $VC_TASK_INDEX run $RUN
[ "$RUN" != 0 ]`
	apply(t, ns, job("train", `  plugins: {svc: [], ssh: [], env: []}
  policies: [{event: PodFailed, action: RestartJob}]`,
		task("ps", 1, forever, half),
		task("worker", 2, worker, whole, "policies: [{event: TaskCompleted, action: CompleteJob}]")))
	awaitPhase(t, ns, "train", "Completed")
	if got := shell(t, "kubectl -n %s get vcjob train -o jsonpath='{.status.retryCount} {.status.succeeded}'", ns); !strings.HasPrefix(got, "1 ") {
		t.Errorf("runs and pods: %s", got)
	}
	for i := range 2 {
		got := shell(t, "kubectl -n %s logs train-worker-%d", ns, i)
		if want := fmt.Sprintf("train-worker-0.train\ntrain-worker-1.train\nindex %d run 1\n", i); !strings.Contains(strings.ReplaceAll(got, "\n\n", "\n"), want) {
			t.Errorf("worker %d printed %q", i, got)
		}
	}
}

// Volcano's plugins for PyTorch and MPI have each pod know the others.
func TestFrameworks(t *testing.T) {
	const ns = "frameworks"
	team(t, ns)
	ends := "policies: [{event: TaskCompleted, action: CompleteJob}]"
	env := "echo $MASTER_ADDR $MASTER_PORT $WORLD_SIZE $RANK"
	apply(t, ns, job("torch", `  plugins: {pytorch: ["--master=master", "--worker=worker", "--port=23456"]}`,
		task("master", 1, env, half), task("worker", 2, env, half))+
		job("mpi", `  plugins: {mpi: ["--master=master", "--worker=worker", "--port=22"]}`,
			task("master", 1, "echo $MPI_HOST; cat /etc/volcano/worker.host", "{}", ends), task("worker", 2, forever, whole)))
	for name, want := range map[string]map[string]string{
		"torch": {"master-0": "torch-master-0.torch 23456 3 0", "worker-0": "torch-master-0.torch 23456 3 1", "worker-1": "torch-master-0.torch 23456 3 2"},
		"mpi":   {"master-0": "mpi-worker-0.mpi,mpi-worker-1.mpi\nmpi-worker-0.mpi\nmpi-worker-1.mpi"},
	} {
		awaitPhase(t, ns, name, "Completed")
		for pod, text := range want {
			if got := shell(t, "kubectl -n %s logs %s-%s", ns, name, pod); !strings.Contains(got, text) {
				t.Errorf("%s-%s printed %q", name, pod, got)
			}
		}
	}
}

// Any minAvailable pods of a Job start together, also where its tasks' own numbers say otherwise.
func TestTasksOwnNumbersAreNotRead(t *testing.T) {
	const ns = "tasks"
	team(t, ns)
	apply(t, ns, job("train", "  minAvailable: 4", task("worker", 4, forever, whole, "minAvailable: 3"), task("ps", 1, forever, whole, "minAvailable: 1")))
	await(t, "four of five pods to run", func() (bool, string) {
		said := shell(t, "kubectl -n %s get vcjob train -o jsonpath={.status.state.phase}{.status.running}", ns)
		return said == "Running4", said
	})
	if n := holds(t, ns, "train"); n != 4 {
		t.Errorf("they hold %d slices", n)
	}
}

// Volcano's own scheduler copies all annotations of a pod into its binding, Vernier's among them, which is refused.
func TestVolcanosSchedulerMayNotBind(t *testing.T) {
	const ns = "binding"
	team(t, ns)
	apply(t, ns, strings.Replace(job("train", "", task("worker", 1, forever, half)), "default-scheduler", "volcano", 1))
	await(t, "the binding to be refused", func() (bool, string) {
		said := shell(t, "kubectl -n %s get events -o jsonpath='{.items[*].message}'", ns)
		return strings.Contains(said, "a binding must not carry annotations of Vernier"), said
	})
}

// The example prints what its page shows.
func TestExample(t *testing.T) {
	const ns = "team-a"
	team(t, ns)
	shell(t, "kubectl config set-context --current --namespace=%s", ns)
	root := must.Get(manifests.Root())(t)
	for _, b := range must.Get(docs.Commands(root))(t) {
		if b.Page != "docs/examples/volcano/README.md" || !b.Session {
			continue
		}
		for _, step := range b.Steps() {
			await(t, step.Command+" to print\n"+step.Shown, func() (bool, string) {
				out, err := sys.Shell(t.Context(), step.Command)
				return err == nil && docs.Prints(out, step.Shown), out
			})
		}
		return
	}
	t.Error("its page has no commands")
}
