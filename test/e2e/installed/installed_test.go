// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package installed owns the proof that Vernier installs as its README says: the
// chart and the images of `make images`, nothing beside the cluster, and nothing
// left when it is removed again.
package installed

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
	"vernier.dev/vernier/webhook/certs"
)

const (
	node      = "gpu-1"
	namespace = "team-a"
	patience  = 2 * time.Minute
)

var sys *system.System

// From nothing to a pod that is held to its share and one that waits, and back to
// nothing: no gate, finalizer, admission or capacity is left.
func TestInstalled(t *testing.T) {
	readme, install := page(t, "README.md"), page(t, "docs/install.md")
	quick := regexp.MustCompile(`(?s)## Install\n.*?\n(` + system.InstallCommand + ` [^\n]*\n(.*?))` + "```").FindStringSubmatch(readme)
	if quick == nil || !strings.Contains(install, quick[1]) {
		t.Fatalf("README.md: no \"Install\" that installs by %q, or docs/install.md has another", system.InstallCommand)
	}
	remove := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(page(t, "docs/tasks/uninstall.md"))
	if remove == nil || !strings.Contains(install, "\nkubectl vernier uninstall --yes\n") {
		t.Fatal("docs/tasks/uninstall.md or docs/install.md does not uninstall")
	}

	var err error
	sys, err = system.Up(t.Context(), system.Options{
		Name: "installed", Chart: true, Progress: os.Stderr,
		Nodes: []system.NodeOptions{{Name: node, GPUs: simgpu.GPU{Model: simgpu.A100}}},
	})
	if sys != nil {
		t.Cleanup(func() { must.Report(t, sys.Down()) })
	}
	must.Do(t, err)
	must.Do(t, sys.Namespaces(t.Context(), map[string]bool{namespace: false}))

	quickStart(t, quick[2])
	create(t, "sharing", 30)
	awaitLog(t, "sharing", fmt.Sprintf("total_mib=%d", deviceMemory(t)*30/100))
	create(t, "waiting", 200) // two GPUs, and the node has one
	await(t, "the waiting pod's event", func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, "kubectl -n "+namespace+" get events --field-selector involvedObject.name=waiting")
		return err == nil && strings.Contains(out, "needs"), out
	})

	kept := authority(t)
	documented(t) // an upgrade among it
	if now := authority(t); now != kept {
		t.Error("an upgrade took the webhook's certificates away")
	}
	migrate(t, system.DemoImage)

	run(t, "kubectl -n "+namespace+" delete pod sharing")
	sharedByMPS(t)
	takeOffNode(t)
	await(t, remove[1], func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, remove[1])
		return err == nil, out
	})
	// Whoever was interrupted begins again at the top, whatever is gone by then.
	run(t, remove[1])
	checkNothingLeft(t)
}

// page is one of the documentation.
func page(t *testing.T, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile("../../../" + path))(t))
}

// quickStart runs what the README has after the installation, until its pod is ready.
func quickStart(t *testing.T, commands string) {
	t.Helper()
	await(t, commands, func(ctx context.Context) (bool, string) {
		out, err := sys.Shell(ctx, stand.Replace(commands))
		return err == nil, out
	})
	run(t, "kubectl -n "+namespace+" wait --for=condition=Ready pod/share --timeout="+patience.String())
	run(t, "kubectl -n "+namespace+" delete pod share")
}

// authority is the key that the webhook's certificates are signed with, in the Secret that
// the chart installs empty.
func authority(t *testing.T) string {
	t.Helper()
	secret, err := sys.Kube.CoreV1().Secrets(v1alpha1.SystemNamespace).Get(t.Context(), certs.SecretName, metav1.GetOptions{})
	if err != nil || len(secret.Data["ca.key"]) == 0 {
		t.Fatalf("the webhook's Secret has %d keys: %v", len(secret.Data), err)
	}
	return string(secret.Data["ca.key"])
}

// sharedByMPS has a client of an MPS server that the agent runs in its pod: what both have
// as /dev/shm the agent mounts, and the runtime finds it. Nothing stays mounted.
func sharedByMPS(t *testing.T) {
	t.Helper()
	create(t, "served", 30, func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationMode: string(v1alpha1.ModeMPS)}
	})
	const contextMiB = 600 // the client's context takes less
	awaitSaying(t, "served", "its share of memory as free", func(text string) bool {
		var free, share int64 = 0, deviceMemory(t) * 30 / 100
		_, rest, _ := strings.Cut(text, "free_mib=")
		_, err := fmt.Sscan(rest, &free)
		return err == nil && free <= share && free > share-contextMiB
	})
	mounts := func() string {
		text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", sys.Node(node).Containerd.ID().PID)))(t)
		return string(text)
	}
	const name = "vernier-mps"
	if now := mounts(); !strings.Contains(now, name) {
		t.Errorf("the node has no tmpfs of MPS': %s", now)
	}
	run(t, "kubectl -n "+namespace+" delete pod served")
	await(t, "the tmpfs of MPS to be unmounted", func(context.Context) (bool, string) {
		now := mounts()
		return !strings.Contains(now, name), now
	})
}

// takeOffNode does what the page on the installation says: neither capacity nor ledger stays,
// or comes back.
func takeOffNode(t *testing.T) {
	t.Helper()
	block := regexp.MustCompile("(?s)### One node.*?```sh\n(.*?)```").FindStringSubmatch(page(t, "docs/install.md"))
	if block == nil {
		t.Fatal("docs/install.md does not say how to take a node off")
	}
	run(t, stand.Replace(block[1]))
	awaitNoCapacity(t)
	await(t, "nothing to be left of a node that was taken off", func(ctx context.Context) (bool, string) {
		left, err := sys.Shell(ctx, "kubectl get sliceledgers -o name")
		return err == nil && left == "", left
	})
}

// checkNothingLeft looks at every object of the cluster.
func checkNothingLeft(t *testing.T) {
	t.Helper()
	awaitNoCapacity(t)
	checkNoObjects(t)
}

func awaitNoCapacity(t *testing.T) {
	t.Helper()
	await(t, "the node's resources to be gone", func(ctx context.Context) (bool, string) {
		n, err := sys.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, name := range v1alpha1.Resources {
			if _, found := n.Status.Capacity[name]; found {
				return false, string(name) + " is in capacity"
			}
			if _, found := n.Status.Allocatable[name]; found {
				return false, string(name) + " is in allocatable"
			}
		}
		return true, ""
	})
}

func checkNoObjects(t *testing.T) {
	t.Helper()
	pods := must.Get(sys.Kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}))(t)
	for _, p := range pods.Items {
		if slices.Contains(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.Gate}) {
			t.Errorf("pod %s/%s has the gate", p.Namespace, p.Name)
		}
	}
	// What owners have had goes a moment after them.
	await(t, "nothing to be left behind", func(ctx context.Context) (bool, string) {
		objects, err := sys.Shell(ctx, `for kind in $(kubectl api-resources --verbs=list -o name | grep -v '^events'); do
  kubectl get $kind -A -o jsonpath="{range .items[*]}$kind {.metadata.namespace}/{.metadata.name} {.metadata.finalizers}{'\n'}{end}"
done`)
		if err != nil {
			return false, fmt.Sprint(err, objects)
		}
		var left []string
		for line := range strings.Lines(objects) {
			// The cluster of the test has vernier in names of its own: none of these.
			if strings.Contains(line, "vernier") && !strings.HasPrefix(line, "namespaces /vernier-probe") && !strings.Contains(line, " vernier-probe/") {
				left = append(left, line)
			}
		}
		return len(left) == 0, strings.Join(left, "")
	})
}

// create makes a pod that asks for the given percentage of a GPU.
func create(t *testing.T, name string, percent int64, changes ...func(*corev1.Pod)) {
	t.Helper()
	grace := int64(2)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: system.DemoImage, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/cudademo", "--hold"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{v1alpha1.ResourceCore: *resource.NewQuantity(percent, resource.DecimalSI)}},
			}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	// As whoever makes pods does, once more where the webhook was not heard in its five seconds.
	await(t, "pod "+name+" to be made", func(ctx context.Context) (bool, string) {
		_, err := sys.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil && !strings.Contains(err.Error(), "failed calling webhook") {
			t.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

func deviceMemory(t *testing.T) int64 {
	t.Helper()
	list := &v1alpha1.SliceLedgerList{}
	must.Do(t, sys.Client.List(t.Context(), list))
	return int64(list.Items[0].Status.Devices[0].Mem)
}

func awaitLog(t *testing.T, pod, part string) {
	t.Helper()
	awaitSaying(t, pod, part, func(text string) bool { return strings.Contains(text, part) })
}

func awaitSaying(t *testing.T, pod, what string, says func(string) bool) {
	t.Helper()
	await(t, fmt.Sprintf("pod %s to print %q", pod, what), func(ctx context.Context) (bool, string) {
		text, err := sys.Logs(ctx, namespace, pod, "main")
		if err == nil && says(text) {
			return true, ""
		}
		events, _ := sys.Shell(ctx, "kubectl -n "+namespace+" get pods,events")
		return false, text + "\n" + events
	})
}

// await polls until check is satisfied; its last words are the failure's text.
func await(t *testing.T, what string, check func(context.Context) (bool, string)) {
	t.Helper()
	system.Await(t, patience, what, check)
}

func run(t *testing.T, script string) string {
	t.Helper()
	out, err := sys.Shell(t.Context(), script)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}
