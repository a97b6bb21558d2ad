// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

const shares = `{"version":"v1alpha1","containers":{"train":{"gpus":1,"core":30,"memPercent":30}}}`

// admitted is a pod as the webhook leaves it.
func admitted(namespace string) *corev1.Pod {
	pod := asking(namespace)
	pod.Annotations = map[string]string{api.AnnotationShares: shares, api.AnnotationMode: "limiter",
		api.AnnotationRequiredPlugins: api.RequiredPluginsValue}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: api.Gate}}
	return pod
}

// The policies need no server of ours: none runs here, and the webhook's
// configuration is not installed.
func TestPolicy(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "admission/policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	allocator := apiserver.Client(t, apiserver.As(cfg,
		"system:serviceaccount:"+api.SystemNamespace+":"+api.AllocatorServiceAccount, "system:masters"))
	namespaces(t, admin)
	t.Run("create", func(t *testing.T) { testPolicyCreate(t, admin) })
	t.Run("workloads", func(t *testing.T) { testPolicyWorkloads(t, cfg) })
	t.Run("static", func(t *testing.T) { testPolicyStatic(t, admin, kubelet(t, cfg)) })
	t.Run("arithmetic", func(t *testing.T) { testPolicyArithmetic(t, admin) })
	t.Run("update", func(t *testing.T) { testPolicyUpdate(t, admin, allocator) })
	t.Run("RDMA", func(t *testing.T) { testPolicyRDMA(t, admin) })
	t.Run("priority", func(t *testing.T) { testPolicyPriority(t, admin, cfg) })
	t.Run("subresources", func(t *testing.T) { testPolicySubresources(t, admin) })
}

func testPolicyCreate(t *testing.T, c client.Client) {
	privileged := true
	with := func(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod { change(pod); return pod }
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want string // a part of the refusal; empty where it is to pass
	}{
		"as the webhook leaves it": {admitted(enabled), ""},
		// Invariant 5.
		"asks for nothing": {with(plain(enabled), func(p *corev1.Pod) {
			p.Spec.HostPID, p.Spec.Containers[0].SecurityContext = true, &corev1.SecurityContext{Privileged: &privileged}
		}), ""},
		"asks for nothing elsewhere":  {plain(other), ""},
		"wishes without a request":    {with(plain(other), func(p *corev1.Pod) { p.Annotations = map[string]string{api.AnnotationMode: "mps"} }), ""},
		"placement":                   {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.AnnotationPlacement] = "{}" }), "only Vernier's allocator writes it: remove it"},
		"placement, nothing else":     {with(plain(other), func(p *corev1.Pod) { p.Annotations = map[string]string{api.AnnotationPlacement: "{}"} }), "only Vernier's allocator writes it: remove it"},
		"namespace not enabled":       {asking(other), `run "kubectl label namespace other vernier.dev/inject=enabled" as an administrator`},
		"namespace disabled":          {asking(disabled), `run "kubectl label namespace disabled vernier.dev/inject=enabled" as an administrator`},
		"forged, not enabled":         {admitted(other), "is not enabled for Vernier"},
		"shares only, not enabled":    {with(plain(other), func(p *corev1.Pod) { p.Annotations = map[string]string{api.AnnotationShares: shares} }), "is not enabled for Vernier"},
		"init container, not enabled": {with(plain(other), func(p *corev1.Pod) { p.Spec.InitContainers = asking(other).Spec.Containers }), "is not enabled for Vernier"},
		"webhook has not been":        {asking(enabled), "webhook has not seen it: check that MutatingWebhookConfiguration vernier-webhook"},
		"no gate":                     {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }), "webhook has not seen it"},
		"no shares":                   {with(admitted(enabled), func(p *corev1.Pod) { delete(p.Annotations, api.AnnotationShares) }), "webhook has not seen it"},
		"shares without a request":    {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.Containers = plain(enabled).Spec.Containers }), "no container asks for a vernier.dev resource: remove"},
		"a gate without a request":    {with(plain(enabled), func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: api.Gate}} }), "no container asks for a vernier.dev resource: remove"},
		"more compute than asked for": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations[api.AnnotationShares] = strings.Replace(shares, `"core":30`, `"core":90`, 1)
		}), `must say what the containers ask for as limits, {"train":{"gpus":1,"core":30,"memPercent":30}}`},
		"more memory than asked for": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations[api.AnnotationShares] = strings.Replace(shares, `"memPercent":30`, `"memPercent":99`, 1)
		}), "must say what the containers ask for"},
		"one container more": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations[api.AnnotationShares] = strings.Replace(shares, `}}}`, `},"more":{"gpus":1,"core":30,"memPercent":30}}}`, 1)
		}), "must say what the containers ask for"},
		"one container less": {with(admitted(enabled), func(p *corev1.Pod) {
			more := p.Spec.Containers[0]
			more.Name = "more"
			p.Spec.Containers = append(p.Spec.Containers, more)
		}), "must say what the containers ask for"},
		"said twice": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations[api.AnnotationShares] = strings.Replace(shares, `}}}`, `},"train":{"gpus":1,"core":90,"memPercent":90}}}`, 1)
		}), "must say what the containers ask for"},
		"another container's": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations[api.AnnotationShares] = strings.Replace(shares, `train`, `other`, 1)
		}), "must say what the containers ask for"},
		"no document": {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.AnnotationShares] = "" }), "must say what the containers ask for"},
		"limits changed afterwards": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits[api.ResourceCore] = resource.MustParse("20")
		}), "must say what the containers ask for"},
		"plugin not required":            {with(admitted(enabled), func(p *corev1.Pod) { delete(p.Annotations, api.AnnotationRequiredPlugins) }), `must name the plugin "vernier"`},
		"another plugin required":        {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = `["x"]` }), `must name the plugin "vernier"`},
		"another, and ours in a comment": {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = `["x"] # "vernier"` }), `must name the plugin "vernier"`},
		"ours among others":              {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = `["x","vernier"]` }), ""},
		"no plugin for a container":      {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.RequiredPluginsPrefix+"container.train"] = `[]` }), `must name the plugin "vernier"`},
		"another for a container":        {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.RequiredPluginsPrefix+"container.side"] = `["x"]` }), `must name the plugin "vernier"`},
		"ours for a container":           {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.RequiredPluginsPrefix+"container.train"] = `["vernier","x"]` }), ""},
		"a weaker form":                  {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations["required-plugins.noderesource.dev"] = `["x"]` }), ""},
		"a tolerance":                    {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations["tolerate-missing-plugins.noderesource.dev/pod"] = "true" }), "must not tolerate missing NRI plugins"},
		"a container's tolerance": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations["tolerate-missing-plugins.noderesource.dev/container.train"] = "true"
		}), "must not tolerate missing NRI plugins"},
		"devices by annotation": {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations["cdi.k8s.io/x"] = "nvidia.com/gpu=all" }), "or name CDI devices"},
		"tolerance without a share": {with(plain(enabled), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"tolerate-missing-plugins.noderesource.dev/pod": "true", api.AnnotationMode: "auto"}
		}), ""},
		"privileged beside a share": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
		}), "is privileged or adds a capability"},
		"the node's processes beside a share": {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.HostPID = true }), "must not have hostPID or hostIPC"},
		"the node's IPC beside a share":       {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.HostIPC = true }), "must not have hostPID or hostIPC"},
		"a capability beside a share":         {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = capability("CAP_SYS_ADMIN") }), "is privileged or adds a capability"},
		"a capability without a share":        {with(plain(enabled), func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = capability("SYS_ADMIN") }), ""},
		"many containers":                     {with(plain(enabled), func(p *corev1.Pod) { p.Spec.Containers = containers(513) }), "a pod may have at most 512 containers"},
		"many containers, not enabled":        {with(plain(other), func(p *corev1.Pod) { p.Spec.InitContainers = containers(512) }), "a pod may have at most 512 containers"},
		"512 containers":                      {with(plain(enabled), func(p *corev1.Pod) { p.Spec.Containers = containers(512) }), ""},
		"many containers beside a share":      {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.InitContainers = containers(64) }), "at most 256 annotations and 64 containers"},
		"many containers with shares": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Spec.InitContainers = containers(16)
			for i := range p.Spec.InitContainers {
				p.Spec.InitContainers[i].Resources = p.Spec.Containers[0].Resources
			}
		}), "16 of which ask for one"},
		"many annotations beside a share": {with(admitted(enabled), func(p *corev1.Pod) { annotate(p, 254) }), "at most 256 annotations"},
		"256 annotations beside a share":  {with(admitted(enabled), func(p *corev1.Pod) { annotate(p, 253) }), ""},
		"many annotations, no share":      {with(plain(enabled), func(p *corev1.Pod) { annotate(p, 5000) }), ""},
		"a share among many resources": {with(plain(enabled), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = requests(600)
			p.Spec.Containers[0].Resources.Requests[api.ResourceMemMiB] = resource.MustParse("1")
			p.Spec.Containers[0].Resources.Limits[api.ResourceMemMiB] = resource.MustParse("1")
		}), "webhook has not seen it"},
		"a share among many resources, not enabled": {with(plain(other), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = requests(600)
			p.Spec.Containers[0].Resources.Limits[api.ResourceGPUs] = resource.MustParse("1")
		}), "is not enabled for Vernier"},
		"a class among many resources, not enabled": {with(plain(other), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = requests(600)
			p.Spec.Containers[0].Resources.Limits[api.ClassResource("gold")] = resource.MustParse("1")
		}), "is not enabled for Vernier"},
		"a class among the resources of many containers": {with(plain(enabled), func(p *corev1.Pod) {
			p.Spec.Containers = containers(300)
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].Resources = requests(2)
			}
			p.Spec.Containers[299].Resources.Limits[api.ClassResource("gold")] = resource.MustParse("1")
		}), "webhook has not seen it"},
		"many containers with resources": {with(plain(other), func(p *corev1.Pod) {
			p.Spec.Containers = containers(300)
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].Resources = requests(4)
			}
		}), ""},
		"a misspelt resource": {with(plain(enabled), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"vernier.dev/gpu-cores": resource.MustParse("1")}
		}), "webhook has not seen it"},
		"many plugin lists": {with(admitted(enabled), func(p *corev1.Pod) {
			for i := range 17 {
				p.Annotations[api.RequiredPluginsPrefix+"container.c"+strconv.Itoa(i)] = `["vernier","x"]`
			}
		}), `must name the plugin "vernier"`},
		"a long plugin list": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Annotations[api.AnnotationRequiredPlugins] = `["vernier"` + strings.Repeat(`,"x"`, 1100) + `]`
		}), `must name the plugin "vernier"`},
		"a quote in a plugin's name":    {with(admitted(enabled), func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = `["x"] # ["vernier"]` }), `must name the plugin "vernier"`},
		"many gates":                    {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, gates(32)...) }), "webhook has not seen it"},
		"a capability in other letters": {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = capability("SYS_ADM\u0131N") }), "is privileged or adds a capability"},
		"a capability in older letters": {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = capability("\u017fYS_ADMIN") }), "is privileged or adds a capability"},
		"a long capability": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = capability(corev1.Capability(strings.Repeat("A", 65)))
		}), "is privileged or adds a capability"},
		"many capabilities": {with(admitted(enabled), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: make([]corev1.Capability, 257)}}
		}), "more than 256 of them"},
		"a folder of the node":             {with(admitted(enabled), func(p *corev1.Pod) { mount(p, "/data") }), ""},
		"a folder that opens the node":     {with(admitted(enabled), func(p *corev1.Pod) { mount(p, "/etc/ssh") }), "a folder of the node that it must not have"},
		"a folder above one":               {with(admitted(enabled), func(p *corev1.Pod) { mount(p, "/var/lib/") }), "a folder of the node that it must not have"},
		"a folder in another form":         {with(admitted(enabled), func(p *corev1.Pod) { mount(p, "/data/.//x") }), "not written in its shortest form"},
		"a long path":                      {with(admitted(enabled), func(p *corev1.Pod) { mount(p, strings.Repeat("/d", 129)) }), "more than 256"},
		"many folders":                     {with(admitted(enabled), func(p *corev1.Pod) { mount(p, slices.Repeat([]string{"/data"}, 33)...) }), "more than 32 of them"},
		"a folder that opens it, no share": {with(plain(enabled), func(p *corev1.Pod) { mount(p, "/etc/ssh") }), ""},
		"a harmless capability":            {with(admitted(enabled), func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = capability("IPC_LOCK") }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, c.Create(t.Context(), tt.pod, client.DryRunAll), tt.want)
		})
	}
}

// What a pod may have much of.

func containers(n int) []corev1.Container {
	list := make([]corev1.Container, n)
	for i := range list {
		list[i] = corev1.Container{Name: "more" + strconv.Itoa(i), Image: "none"}
	}
	return list
}

func gates(n int) []corev1.PodSchedulingGate {
	list := make([]corev1.PodSchedulingGate, n)
	for i := range list {
		list[i].Name = "example.com/g" + strconv.Itoa(i)
	}
	return list
}

func requests(n int) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Limits: corev1.ResourceList{}, Requests: corev1.ResourceList{}}
	for i := range n {
		name := corev1.ResourceName("example.com/r" + strconv.Itoa(i))
		r.Limits[name], r.Requests[name] = resource.MustParse("1"), resource.MustParse("1")
	}
	return r
}

func annotate(pod *corev1.Pod, n int) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for i := range n {
		pod.Annotations["example.com/k"+strconv.Itoa(i)] = ""
	}
}

func mount(pod *corev1.Pod, paths ...string) {
	for i, p := range paths {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v" + strconv.Itoa(i),
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p}}})
	}
}

// kubelet is that of node n1.
func kubelet(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	return apiserver.Client(t, apiserver.As(cfg, "system:node:n1", "system:nodes", "system:masters"))
}

// static is the pod as the kubelet of n1 shows it that runs it from a manifest.
func static(pod *corev1.Pod, annotations map[string]string) *corev1.Pod {
	pod.Spec.NodeName = "n1"
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	maps.Copy(pod.Annotations, annotations)
	return pod
}

// A kubelet may show a static pod that asks, without the marks of a share: it runs whatever is
// said here. From anybody else it is a pod like others.
// Who applies a workload where its pods are refused is warned, and nobody else is.
func testPolicyWorkloads(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	initial := plain(other)
	initial.Spec.InitContainers = asking(other).Spec.Containers
	none := asking(other)
	for name := range none.Spec.Containers[0].Resources.Limits {
		none.Spec.Containers[0].Resources.Limits[name] = resource.MustParse("0")
	}
	for name, tt := range map[string]struct {
		namespace string
		pod       *corev1.Pod
		warned    bool
	}{
		"asks":                      {other, asking(other), true},
		"asks, namespace disabled":  {disabled, asking(disabled), true},
		"asks in an init container": {other, initial, true},
		"asks for 0":                {other, none, false},
		"asks for nothing":          {other, plain(other), false},
		"asks where it is enabled":  {enabled, asking(enabled), false},
		"many containers":           {other, func() *corev1.Pod { p := plain(other); p.Spec.Containers = containers(512); return p }(), false},
	} {
		for kind, workload := range workloads(tt.namespace, templateOf(tt.pod)) {
			heard.texts = nil
			expect(t, c.Create(t.Context(), workload), "")
			workload.SetLabels(map[string]string{"a": "b"})
			expect(t, c.Update(t.Context(), workload), "")
			want := fmt.Sprintf(`the pods of this %s ask for a vernier.dev share and will be refused: namespace %[2]s is not enabled for Vernier. `+
				`Have an administrator run "kubectl label namespace %[2]s vernier.dev/inject=enabled"`, kind, tt.namespace)
			said := slices.DeleteFunc(slices.Clone(heard.texts), func(text string) bool { return !strings.Contains(text, want) })
			if got := map[bool]int{true: 2}[tt.warned]; len(said) != got || len(heard.texts) != got {
				t.Errorf("%s, %s: warned %q, want %d times %q", name, kind, heard.texts, got, want)
			}
		}
	}
	owned := workloads(other, templateOf(asking(other)))["ReplicaSet"]
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "u", Controller: ptr.To(true)}})
	heard.texts = nil
	expect(t, c.Create(t.Context(), owned), "")
	if len(heard.texts) > 0 {
		t.Errorf("the controller of a Deployment is warned: %q", heard.texts)
	}
}

func testPolicyStatic(t *testing.T, admin, kubelet client.Client) {
	mark := map[string]string{api.AnnotationShares: shares}
	forged := static(admitted(enabled), admitted(enabled).Annotations)
	nowhere := forged.DeepCopy()
	nowhere.Spec.NodeName = ""
	for name, tt := range map[string]struct {
		as   client.Client
		pod  *corev1.Pod
		want string
	}{
		"enabled":                    {kubelet, static(asking(enabled), nil), ""},
		"not enabled":                {kubelet, static(asking(other), nil), ""},
		"no static pod":              {kubelet, asking(enabled), "webhook has not seen it"},
		"no static pod, not enabled": {kubelet, asking(other), "is not enabled for Vernier"},
		"marked":                     {kubelet, static(asking(enabled), mark), "webhook has not seen it"},
		"marked, not enabled":        {kubelet, static(asking(other), mark), "is not enabled for Vernier"},
		"placed":                     {kubelet, static(asking(enabled), map[string]string{api.AnnotationPlacement: "{}"}), "only Vernier's allocator writes it"},
		// The webhook is not asked about these: they would be admitted with shares of their own
		// making. The API server refuses a gate on a pod that has its node, and no node.
		"marked and gated":              {kubelet, forged, "until all schedulingGates have been cleared"},
		"marked and gated, of no node":  {kubelet, nowhere, "must set spec.nodeName if mirror pod annotation is set"},
		"of somebody else":              {admin, static(asking(enabled), nil), "webhook has not seen it"},
		"of somebody else, not enabled": {admin, static(asking(other), nil), "is not enabled for Vernier"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, tt.as.Create(t.Context(), tt.pod, client.DryRunAll), tt.want) })
	}
}

// The policy's arithmetic is the webhook's: whatever the webhook writes, it lets
// through, and nothing that differs in one digit.
func testPolicyArithmetic(t *testing.T, c client.Client) {
	random := rand.New(rand.NewPCG(1, 2))
	amounts := []string{"1", "7", "10", "30", "50", "64", "100", "120", "200", "300", "1k", "1600"}
	limits := func() corev1.ResourceList {
		list := corev1.ResourceList{}
		for _, name := range api.Resources {
			if random.IntN(2) == 0 {
				list[name] = resource.MustParse(amounts[random.IntN(len(amounts))])
			}
		}
		if random.IntN(2) == 0 {
			list[api.ResourceGPUs] = resource.MustParse(strconv.Itoa(1 + random.IntN(api.MaxContainerDevices)))
		}
		return list
	}
	for accepted := 0; accepted < 100; {
		pod, document := admitted(enabled), api.Shares{Version: api.Version, Containers: map[string]api.Share{}}
		pod.Spec.Containers = nil
		for i := range 1 + random.IntN(3) {
			ctr := corev1.Container{Name: "c" + strconv.Itoa(i), Image: "none", Resources: corev1.ResourceRequirements{Limits: limits()}}
			share, errs := podrequest.ShareOf(corev1.ResourceRequirements{Limits: ctr.Resources.Limits}, nil, nil)
			if len(errs) > 0 {
				continue
			}
			document.Containers[ctr.Name] = share
			if i == 0 || random.IntN(3) > 0 {
				pod.Spec.Containers = append(pod.Spec.Containers, ctr)
			} else {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, ctr)
			}
		}
		if len(pod.Spec.Containers) == 0 {
			continue
		}
		accepted++
		text := must.Get(document.Encode())(t)
		pod.Annotations[api.AnnotationShares] = text
		if err := c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("%s: refused: %v", text, err)
		}
		at := strings.LastIndexAny(text, "012345678")
		pod.Annotations[api.AnnotationShares] = text[:at] + string(text[at]+1) + text[at+1:]
		expect(t, c.Create(t.Context(), pod, client.DryRunAll), "must say what the containers ask for")
	}
}

func capability(name corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{name}}}
}

func testPolicyUpdate(t *testing.T, admin, allocator client.Client) {
	ours, others := admitted(enabled), plain(other)
	others.Annotations = map[string]string{api.AnnotationPolicy: "pack"}
	placed := admitted(enabled)
	for _, pod := range []*corev1.Pod{ours, others, placed} {
		must.Do(t, admin.Create(t.Context(), pod))
	}
	// As the allocator does it: one patch.
	expect(t, patch(t, allocator, placed, `{"metadata":{"annotations":{"vernier.dev/placement":"{}"}},"spec":{"schedulingGates":null}}`), "")

	many := plain(other)
	annotate(many, 254)
	text := must.Get(json.Marshal(map[string]any{"metadata": map[string]any{"annotations": many.Annotations}}))(t)
	manyAnnotations := string(text)
	for name, tt := range map[string]struct {
		as   client.Client
		pod  *corev1.Pod
		set  string // a merge patch
		want string
	}{
		"shares changed":                       {admin, ours, `{"metadata":{"annotations":{"vernier.dev/shares":"{}"}}}`, "annotations[vernier.dev/shares]: cannot change"},
		"shares removed":                       {admin, ours, `{"metadata":{"annotations":{"vernier.dev/shares":null}}}`, "annotations[vernier.dev/shares]: cannot change"},
		"shares added":                         {admin, others, `{"metadata":{"annotations":{"vernier.dev/shares":"{}"}}}`, "annotations[vernier.dev/shares]: cannot change"},
		"shares, by the allocator":             {allocator, ours, `{"metadata":{"annotations":{"vernier.dev/shares":"{}"}}}`, "annotations[vernier.dev/shares]: cannot change"},
		"placement and mode, by the allocator": {allocator, ours, `{"metadata":{"annotations":{"vernier.dev/placement":"{}","vernier.dev/mode":"exclusive"}}}`, "read at creation only"},
		"mode removed, by the allocator":       {allocator, ours, `{"metadata":{"annotations":{"vernier.dev/mode":null}}}`, "read at creation only"},
		"devices added, by the allocator":      {allocator, placed, `{"metadata":{"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=all"}}}`, "name NRI plugins or CDI devices"},
		"placement changed, by the allocator":  {allocator, placed, `{"metadata":{"annotations":{"vernier.dev/placement":"x"}}}`, ""},
		"placement added":                      {admin, ours, `{"metadata":{"annotations":{"vernier.dev/placement":"{}"}}}`, "annotations[vernier.dev/placement]: only Vernier's allocator"},
		"placement changed":                    {admin, placed, `{"metadata":{"annotations":{"vernier.dev/placement":"x"}}}`, "annotations[vernier.dev/placement]: only Vernier's allocator"},
		"placement removed":                    {admin, placed, `{"metadata":{"annotations":{"vernier.dev/placement":null}}}`, "annotations[vernier.dev/placement]: only Vernier's allocator"},
		"gate removed":                         {admin, ours, `{"spec":{"schedulingGates":null}}`, "schedulingGates[vernier.dev/placement]: only Vernier's allocator"},
		"mode changed":                         {admin, ours, `{"metadata":{"annotations":{"vernier.dev/mode":"exclusive"}}}`, "read at creation only"},
		"mode removed":                         {admin, ours, `{"metadata":{"annotations":{"vernier.dev/mode":null}}}`, "read at creation only"},
		"policy added":                         {admin, ours, `{"metadata":{"annotations":{"vernier.dev/policy":"spread"}}}`, "read at creation only"},
		"resize added":                         {admin, ours, `{"metadata":{"annotations":{"vernier.dev/resize":"{}"}}}`, ""},
		"resize of 4,097 bytes":                {admin, ours, `{"metadata":{"annotations":{"vernier.dev/resize":"` + strings.Repeat("x", 4097) + `"}}}`, "read at creation only"},
		"resize, by the allocator":             {allocator, placed, `{"metadata":{"annotations":{"vernier.dev/resize":"{}"}}}`, "the allocator may change the annotation vernier.dev/placement only"},
		"start added":                          {admin, ours, `{"metadata":{"annotations":{"vernier.dev/start":"{}"}}}`, "read at creation only"},
		"policy changed, no share":             {admin, others, `{"metadata":{"annotations":{"vernier.dev/policy":"spread"}}}`, ""},
		"placement added, no share":            {admin, others, `{"metadata":{"annotations":{"vernier.dev/placement":"{}"}}}`, "annotations[vernier.dev/placement]: only Vernier's allocator"},
		"required plugins changed":             {admin, ours, `{"metadata":{"annotations":{"required-plugins.noderesource.dev/pod":"[]"}}}`, "name NRI plugins or CDI devices"},
		"required plugins removed":             {admin, ours, `{"metadata":{"annotations":{"required-plugins.noderesource.dev/pod":null}}}`, "name NRI plugins or CDI devices"},
		"a stronger form added":                {admin, ours, `{"metadata":{"annotations":{"required-plugins.noderesource.dev/container.train":"[]"}}}`, "name NRI plugins or CDI devices"},
		"devices added":                        {admin, ours, `{"metadata":{"annotations":{"nvidia.cdi.k8s.io":"nvidia.com/gpu=all"}}}`, "name NRI plugins or CDI devices"},
		"devices added, other form":            {admin, placed, `{"metadata":{"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=all"}}}`, "name NRI plugins or CDI devices"},
		"tolerance added":                      {admin, ours, `{"metadata":{"annotations":{"tolerate-missing-plugins.noderesource.dev/pod":"true"}}}`, "name NRI plugins or CDI devices"},
		"required plugins, no share":           {admin, others, `{"metadata":{"annotations":{"required-plugins.noderesource.dev/pod":"[\"x\"]"}}}`, ""},
		"many annotations added":               {admin, ours, manyAnnotations, "at most 256: remove some"},
		"many annotations, by the allocator":   {allocator, placed, manyAnnotations, "at most 256: remove some"},
		"many annotations added, no share":     {admin, others, manyAnnotations, ""},
		"labels and other annotation":          {admin, ours, `{"metadata":{"labels":{"a":"b"},"annotations":{"example.com/a":"b"}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, patch(t, tt.as, tt.pod, tt.set, client.DryRunAll), tt.want) })
	}
}

func testPolicySubresources(t *testing.T, c client.Client) {
	ours, others := admitted(enabled), plain(enabled)
	for _, pod := range []*corev1.Pod{ours, others} {
		must.Do(t, c.Create(t.Context(), pod))
	}
	sub := func(name string, pod *corev1.Pod, set any) error {
		text := must.Get(json.Marshal(set))(t)
		return c.SubResource(name).Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, text))
	}
	type object = map[string]any
	note := func(key, value string) object { return object{"metadata": object{"annotations": object{key: value}}} }
	debug := func(security object) object {
		return object{"spec": object{"ephemeralContainers": []object{{"name": "debug", "image": "none", "securityContext": security}}}}
	}
	expect(t, sub("status", ours, note(api.AnnotationPlacement, "{}")), "only Vernier's allocator writes it")
	expect(t, sub("status", ours, note(api.AnnotationShares, "{}")), "cannot change")
	expect(t, sub("status", ours, note(api.AnnotationResize, "{}")), "read at creation only")
	expect(t, sub("status", ours, object{"status": object{"reason": "x"}}), "")
	expect(t, sub("ephemeralcontainers", ours, debug(object{"privileged": true})), "is privileged or adds a capability")
	expect(t, sub("ephemeralcontainers", ours, debug(object{"capabilities": object{"add": []string{"SYS_PTRACE"}}})), "is privileged or adds a capability")
	expect(t, sub("ephemeralcontainers", ours, debug(object{"capabilities": object{"add": []string{"SYS_ADM\u0131N"}}})), "is privileged or adds a capability")
	expect(t, sub("ephemeralcontainers", others, debug(object{"privileged": true})), "")
	many := []object{}
	for i := range 128 {
		many = append(many, object{"name": "debug" + strconv.Itoa(i), "image": "none"})
	}
	expect(t, sub("ephemeralcontainers", ours, object{"spec": object{"ephemeralContainers": many}}), "at most 128 containers, of all kinds")
	expect(t, sub("ephemeralcontainers", ours, debug(object{})), "")

	bind := func(annotations map[string]string) error {
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Annotations: maps.Clone(annotations)},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
		return c.SubResource("binding").Create(context.Background(), others.DeepCopy(), binding)
	}
	for _, key := range []string{api.AnnotationPlacement, api.AnnotationRequiredPlugins, api.AnnotationNVIDIACDIPrefix} {
		expect(t, bind(map[string]string{key: "{}"}), "a binding must not carry annotations of Vernier")
	}
	expect(t, bind(map[string]string{"example.com/a": "b"}), "")
}

func patch(t *testing.T, c client.Client, pod *corev1.Pod, merge string, o ...client.PatchOption) error {
	t.Helper()
	return c.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(merge)), o...)
}

// expect is success where want is empty, else a refusal that says it.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("let through, want it refused with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with %q, want %q", err, want)
	}
}

// Device nodes of RDMA devices are for pods of namespaces that an administrator has labelled.
func testPolicyRDMA(t *testing.T, c client.Client) {
	const labelled = "rdma"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: labelled, Labels: map[string]string{
		api.LabelInject: api.LabelInjectEnabled, api.LabelRDMA: api.LabelRDMAEnabled}}}
	must.Do(t, c.Create(t.Context(), ns))
	for namespace, want := range map[string]string{labelled: "", enabled: `run "kubectl label namespace ` + enabled + ` vernier.dev/rdma=enabled"`} {
		pod := admitted(namespace)
		pod.Annotations[api.AnnotationRDMA] = "near"
		if err := c.Create(t.Context(), pod, client.DryRunAll); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("in namespace %s: %v, want %q", namespace, err, want)
		}
	}
}

// Classes of the cluster's own parts are for pods with shares of namespaces that an administrator has
// labelled, and only who may create PriorityClasses labels.
func testPolicyPriority(t *testing.T, c client.Client, cfg *rest.Config) {
	const labelled, label = "labelled", api.LabelPriorityClassPrefix + "system-cluster-critical"
	self := apiserver.Client(t, apiserver.As(cfg, "self-service"))
	objects := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "namespaces"}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"namespaces", "namespaces/status", "namespaces/finalize"}, Verbs: []string{"create", "update", "patch", "get"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "namespaces"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "namespaces"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "self-service"}}},
	}
	for _, o := range objects {
		must.Do(t, c.Create(t.Context(), o))
	}
	ns := func(labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: labelled, Labels: labels}}
	}
	const why = "only who may create PriorityClasses may change them"
	expect(t, self.Create(t.Context(), ns(map[string]string{label: api.LabelPriorityClassEnabled}), client.DryRunAll), why)
	expect(t, self.Create(t.Context(), ns(map[string]string{api.LabelInject: api.LabelInjectEnabled})), "")
	patch := func(value string) client.Patch {
		return client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+label+`":`+value+`,"mine":"x"}}}`))
	}
	expect(t, self.Patch(t.Context(), ns(nil), patch(`"enabled"`)), why)
	expect(t, self.Status().Patch(t.Context(), ns(nil), patch(`"enabled"`)), why)
	expect(t, self.Patch(t.Context(), ns(nil), patch(`null`)), "")

	many := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "many", Labels: map[string]string{}}}
	for i := range 600 {
		many.Labels[strconv.Itoa(i)] = "x"
	}
	expect(t, self.Create(t.Context(), many.DeepCopy(), client.DryRunAll), why)
	expect(t, c.Create(t.Context(), many), "")
	expect(t, self.Status().Patch(t.Context(), many, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`)), client.DryRunAll), "")

	pod := admitted(labelled)
	pod.Spec.PriorityClassName = "system-cluster-critical"
	expect(t, c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), `run "kubectl label namespace labelled priority-class.vernier.dev/system-cluster-critical=enabled"`)
	unshared := plain(labelled)
	unshared.Spec.PriorityClassName = pod.Spec.PriorityClassName
	expect(t, c.Create(t.Context(), unshared, client.DryRunAll), "")
	expect(t, c.Patch(t.Context(), ns(nil), patch(`"enabled"`)), "")
	expect(t, self.Patch(t.Context(), ns(nil), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"mine":"y"}}}`))), "")
	expect(t, self.Patch(t.Context(), ns(nil), patch(`null`)), why)
	await(t, "the API server knows the label", func() bool { return c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll) == nil })
	testPriorityManifest(t, c)
}

// The manifest of docs/concepts/priority.md: a namespace that is allowed a class, and how much of it.
func testPriorityManifest(t *testing.T, c client.Client) {
	page := must.Get(os.ReadFile("../docs/concepts/priority.md"))(t)
	block := regexp.MustCompile("(?s)```yaml\n(apiVersion: v1\nkind: Namespace\n.*?)\n---\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/concepts/priority.md has no Namespace")
	}
	ns, quota := &corev1.Namespace{}, &corev1.ResourceQuota{}
	must.Do(t, errors.Join(yaml.UnmarshalStrict(block[1], ns), yaml.UnmarshalStrict(block[2], quota)))
	class := quota.Spec.ScopeSelector.MatchExpressions[0].Values[0]
	if ns.Labels[api.LabelPriorityClassPrefix+class] != api.LabelPriorityClassEnabled {
		t.Errorf("the quota is for class %s, the namespace has %v", class, ns.Labels)
	}
	for _, o := range []client.Object{ns, quota, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: 1000}} {
		must.Do(t, c.Create(t.Context(), o))
	}
	// What the quota's controller, which does not run here, would write.
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard.DeepCopy(), corev1.ResourceList{}
	for name, hard := range quota.Spec.Hard {
		if !hard.IsZero() {
			hard.Sub(resource.MustParse("20"))
		}
		quota.Status.Used[name] = hard
	}
	must.Do(t, c.Status().Update(t.Context(), quota))
	of := func(class string) error {
		pod := admitted(ns.Name)
		pod.Spec.PriorityClassName = class
		return c.Create(t.Context(), pod, client.DryRunAll)
	}
	await(t, "the quota counts pods of its class", func() bool {
		err := of(class)
		return err != nil && strings.Contains(err.Error(), "exceeded quota: "+quota.Name)
	})
	expect(t, of(""), "")
}
