// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

// BenchmarkSteps is what the requests of a pod's way cost the API server that has our
// policies: its CPU time, without watchers. Run it with -benchtime of some thousand.
func BenchmarkSteps(b *testing.B) {
	cfg := launch(b, nil)
	server := apiServerOf(b)
	as := func(user string) kubernetes.Interface {
		c := rest.CopyConfig(apiserver.As(cfg, user, "system:masters"))
		c.QPS, c.ContentType = -1, "application/vnd.kubernetes.protobuf"
		return kubernetes.NewForConfigOrDie(c)
	}
	user, ours, ctx := as("user"), as("system:serviceaccount:"+v1alpha1.SystemNamespace+":"+v1alpha1.AllocatorServiceAccount), b.Context()
	made := 0
	create := func(b *testing.B, pod func(string) *corev1.Pod) *corev1.Pod {
		made++
		p, err := user.CoreV1().Pods("ns").Create(ctx, pod(fmt.Sprintf("p%06d", made)), metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	gated := func(name string) *corev1.Pod {
		return objects.Single(name, objects.Share(10, 100))
	}
	plain := func(name string) *corev1.Pod {
		p := gated(name)
		p.Annotations, p.Spec.SchedulingGates = nil, nil
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		return p
	}
	step := func(name string, prepare func(b *testing.B) *corev1.Pod, do func(*testing.B, *corev1.Pod)) {
		b.Run(name, func(b *testing.B) {
			pods := make([]*corev1.Pod, b.N)
			for i := range pods {
				pods[i] = prepare(b)
			}
			before := server.used(b)
			b.ResetTimer()
			for _, p := range pods {
				do(b, p)
			}
			b.ReportMetric(float64((server.used(b)-before).Microseconds())/float64(b.N), "server-us/op")
		})
	}
	none := func(*testing.B) *corev1.Pod { return nil }
	bare := func(b *testing.B) *corev1.Pod {
		p := create(b, gated)
		p, err := user.CoreV1().Pods("ns").Patch(ctx, p.Name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`), metav1.PatchOptions{})
		if err != nil || len(p.ManagedFields) > 0 {
			b.Fatal(p.ManagedFields, err)
		}
		return p
	}
	letGo := func(b *testing.B, p *corev1.Pod) {
		patch, err := binding.UngatePatch(p, &v1alpha1.Placement{Version: v1alpha1.Version, Node: "node-0001", Containers: map[string]v1alpha1.PlacedShare{
			"c": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: "GPU-00000000-0000-4000-8000-000000000000", Core: 10, MemMiB: 100}}}}})
		if err == nil {
			_, err = ours.CoreV1().Pods("ns").Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: string(binding.FieldOwner)})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	bind := func(b *testing.B, p *corev1.Pod) {
		err := user.CoreV1().Pods("ns").Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
	}
	step("create-plain", none, func(b *testing.B, _ *corev1.Pod) { create(b, plain) })
	step("create-ours", none, func(b *testing.B, _ *corev1.Pod) { create(b, gated) })
	step("let-go", func(b *testing.B) *corev1.Pod { return create(b, gated) }, letGo)
	step("let-go-no-managed-fields", bare, letGo)
	step("bind-plain", func(b *testing.B) *corev1.Pod { return create(b, plain) }, bind)
	ledgers, ledger := apiserver.Client(b, cfg), fullLedger("full")
	if err := ledgers.Create(ctx, ledger); err != nil {
		b.Fatal(err)
	}
	// As the allocator leaves it, with its first write.
	ledger.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	step("write-ledger", none, func(b *testing.B, _ *corev1.Pod) {
		first := &ledger.Spec.Devices[0].Slices[0]
		first.Core = 24 + (first.Core+1)%2 // another amount each time: what changes nothing is not written
		if err := ledgers.Update(ctx, ledger); err != nil {
			b.Fatal(err)
		}
	})
}

// pid is a process on this machine.
type pid string

// apiServerOf finds the API server that this test started.
func apiServerOf(b *testing.B) pid {
	b.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if f := strings.Fields(string(text)); strings.HasPrefix(f[1], "(kube-apiserver") && f[3] == strconv.Itoa(os.Getpid()) {
			return pid(f[0])
		}
	}
	b.Fatal("no API server of this test's")
	return ""
}

// used is its CPU time so far.
func (p pid) used(b *testing.B) time.Duration {
	b.Helper()
	var sum time.Duration
	tasks, _ := filepath.Glob("/proc/" + string(p) + "/task/*/schedstat")
	for _, file := range tasks {
		if text, err := os.ReadFile(file); err == nil {
			ns, _ := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}
