// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package cli

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook"
)

// shape is one way of asking: what the containers of a pod have in their limits.
type shape struct {
	name           string
	init, sidecars []corev1.ResourceList
	containers     []corev1.ResourceList
	mode           string
}

// asks is a limit for each pair of a name without prefix and an amount.
func asks(pairs ...any) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(v1alpha1.Prefix+fmt.Sprint(pairs[i]))] = resource.MustParse(fmt.Sprint(pairs[i+1]))
	}
	return list
}

func (s *shape) pod(namespace string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "p-"}}
	if s.mode != "" {
		p.Annotations = map[string]string{v1alpha1.AnnotationMode: s.mode}
	}
	add := func(into *[]corev1.Container, prefix string, restart *corev1.ContainerRestartPolicy, lists []corev1.ResourceList) {
		for i, list := range lists {
			*into = append(*into, corev1.Container{Name: prefix + strconv.Itoa(i), Image: "none", RestartPolicy: restart, Resources: corev1.ResourceRequirements{Limits: list}})
		}
	}
	add(&p.Spec.InitContainers, "i", nil, s.init)
	add(&p.Spec.InitContainers, "s", ptr.To(corev1.ContainerRestartPolicyAlways), s.sidecars)
	add(&p.Spec.Containers, "c", nil, s.containers)
	return p
}

func of(lists ...corev1.ResourceList) []corev1.ResourceList { return lists }

// waysAround are the ways of asking for a share, each of which some quota does not count.
var waysAround = []shape{
	{name: "compute only", containers: of(asks("gpu-core", 30))},
	{name: "little compute, much memory", containers: of(asks("gpu-core", 1, "gpu-mem", 60))},
	{name: "little memory, much compute", containers: of(asks("gpu-core", 60, "gpu-mem", 1))},
	{name: "compute and MiB", containers: of(asks("gpu-core", 1, "gpu-mem-mib", 9000))},
	{name: "memory in percent only", containers: of(asks("gpu-mem", 45))},
	{name: "MiB only", containers: of(asks("gpu-mem-mib", 7000))},
	{name: "several GPUs", containers: of(asks("gpu-core", 120))},
	{name: "a little of several GPUs", containers: of(asks("gpu-core", 8, "gpu", 8))},
	{name: "memory of several GPUs", containers: of(asks("gpu-mem", 100, "gpu", 2))},
	{name: "MiB of several GPUs", containers: of(asks("gpu-mem-mib", 20000, "gpu", 2))},
	{name: "a whole GPU", containers: of(asks("gpu-core", 100)), mode: "exclusive"},
	{name: "a class in MiB", containers: of(asks("gpu-gold", 2))},
	{name: "a class in percent", containers: of(asks("gpu-silver", 1))},
	{name: "a whole GPU, by a class", containers: of(asks("gpu-silver", 4))},
	{name: "an init container", init: of(asks("gpu-core", 100)), containers: of(asks("gpu-core", 50), asks("gpu-core", 50))},
	{name: "an init container with MiB", init: of(asks("gpu-mem-mib", 12000)), containers: of(asks("gpu-mem-mib", 6000), asks("gpu-mem-mib", 6000))},
	{name: "classes, one after the other", init: of(asks("gpu-gold", 3)), containers: of(asks("gpu-silver", 3))},
	{name: "a sidecar", sidecars: of(asks("gpu-core", 10)), containers: of(asks("gpu-mem", 20))},
	{name: "many containers", containers: of(asks("gpu-core", 2), asks("gpu-mem", 2), asks("gpu-mem-mib", 300), asks("gpu-core", 2, "gpu-mem-mib", 300))},
	{name: "slots", containers: of(asks("gpu-mem-mib", 16, "gpu", 16))},
	{name: "little MiB", containers: of(asks("gpu-mem-mib", 400))},
	{name: "the least of all", containers: of(asks("gpu-core", 1, "gpu-mem", 1))},
}

// Whatever the words of the pods, and in whatever order they come, a namespace with a limit gets no more
// than that: each shape is tried until it is refused, on an API server with the webhook and the policies.
func TestHostileLimitOfGPUs(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/policy.yaml", "admission/webhook-policy.yaml", "admission/limit-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	startWebhook(t, cfg)
	const least, most = 16384, 81559
	for name, d := range map[string]v1alpha1.DeviceStatus{"t4": {Model: "Tesla T4", Mem: least}, "h100": {Model: "NVIDIA H100 80GB HBM3", Mem: most}} {
		l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name}}
		create(t, admin, l)
		d.UUID, d.MIG, d.Healthy = "GPU-"+name, v1alpha1.MIGDisabled, true
		l.Status.Devices = []v1alpha1.DeviceStatus{d}
		must.Do(t, admin.Status().Update(t.Context(), l))
	}
	for name, unit := range map[string]v1alpha1.GPUUnit{"gold": {Core: 20, MemMiB: 4000}, "silver": {Core: 25}} {
		create(t, admin, &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUClassSpec{Models: []string{"Tesla T4"}, Unit: unit}})
	}
	grant(t, admin, "carol", "cluster-admin")
	config := kubeconfig(t, cfg)
	named := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}}
	}
	create(t, admin, named("free"))
	for _, s := range waysAround {
		p := s.pod("free")
		await(t, func() bool { return admin.Create(t.Context(), p, client.DryRunAll) == nil }, func() any {
			return fmt.Sprint(s.name, " without a limit: ", admin.Create(t.Context(), p, client.DryRunAll))
		})
	}

	for _, memory := range []string{"percent", "mib"} {
		for first := 0; first < len(waysAround); first += 8 {
			ns := fmt.Sprintf("%s-%d", memory, first)
			create(t, admin, named(ns))
			await(t, func() bool {
				out, errOut, err := vernier(t, config, "carol", "quota "+ns+" --gpus 2.5 --memory "+memory)
				return err == nil && errOut == "" && strings.HasPrefix(out, "resourcequota/vernier-gpus ")
			}, func() any { return "the quota is not written" })
			inForce(t, admin, ns)
			// What is refused once is refused for good: what is counted only grows.
			admitted, left := map[string]int{}, slices.Concat(waysAround[first:], waysAround[:first])
			for len(left) > 0 {
				left = slices.DeleteFunc(left, func(s shape) bool {
					err := admin.Create(t.Context(), s.pod(ns))
					if err == nil {
						admitted[s.name]++
					} else if text := err.Error(); !strings.Contains(text, "exceeded quota: vernier-gpus") && !strings.Contains(text, "this namespace has a limit of GPUs") {
						t.Fatalf("%s: %s: %v", ns, s.name, err)
					}
					return err != nil
				})
			}
			var pods corev1.PodList
			must.Do(t, admin.List(t.Context(), &pods, client.InNamespace(ns)))
			var core, mem, slots float64
			for i := range pods.Items {
				// Each container on GPUs of its own, of the least memory.
				for _, share := range podrequest.SharesOf(&pods.Items[i]) {
					n := float64(share.GPUs)
					core, mem, slots = core+n*float64(share.Core), mem+n*(float64(share.MemPercent)+100*float64(share.MemMiB)/least), slots+n
				}
			}
			if core > 250 || mem > 250 || slots > 640 || max(core, mem) < 245 {
				t.Errorf("%s: %v %% of compute, %v %% of memory and %v slices, want at most 250, 250 and 640, and nearly all: %v", ns, core, mem, slots, admitted)
			}
		}
	}
}

// inForce does what the quota controller would, and waits for the API server to count and to know the limit.
func inForce(t *testing.T, admin client.Client, ns string) {
	t.Helper()
	quota := &corev1.ResourceQuota{}
	must.Do(t, admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: quotaName}, quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
	for name := range quota.Spec.Hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	must.Do(t, admin.Status().Update(t.Context(), quota))
	for text, s := range map[string]shape{
		"exceeded quota":                     {containers: of(asks("gpu-core", 300))},
		"this namespace has a limit of GPUs": {init: of(asks("gpu-core", 1, "gpu-mem-mib", 1)), containers: of(asks("gpu-core", 1, "gpu-mem-mib", 1))},
	} {
		var err error
		await(t, func() bool {
			err = admin.Create(t.Context(), s.pod(ns), client.DryRunAll)
			return err != nil && strings.Contains(err.Error(), text)
		}, func() any { return err })
	}
}

// startWebhook runs the webhook as in deploy/, at an address on this machine.
func startWebhook(t *testing.T, cfg *rest.Config) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().(*net.TCPAddr)
	must.Do(t, l.Close())
	admin := apiserver.Client(t, cfg)
	for _, object := range apiserver.Manifests(t, "admission/webhook.yaml") {
		hook := object.Object["webhooks"].([]any)[0].(map[string]any)
		path := hook["clientConfig"].(map[string]any)["service"].(map[string]any)["path"].(string)
		hook["clientConfig"] = map[string]any{"url": "https://" + address.String() + path}
		hook["timeoutSeconds"] = int64(30)
		must.Do(t, admin.Create(t.Context(), object))
	}
	mgr := must.Get(webhook.New(apiserver.AsServiceAccount(cfg, v1alpha1.WebhookServiceAccount), webhook.Options{
		Host: address.IP.String(), Port: address.Port, MetricsAddress: "0", HealthAddress: "0"}))(t)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the webhook ended with: %v", err)
		}
	})
}
