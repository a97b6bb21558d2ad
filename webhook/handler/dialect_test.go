// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
	"vernier.dev/vernier/webhook/podtemplate"
)

// A pod of another system comes out as one of ours would, and a second round of
// admission changes nothing.
func TestDialects(t *testing.T) {
	for name, c := range map[string]struct {
		limits      []string
		annotations map[string]string
		want        string
		dialect     string
	}{
		"hami": {[]string{"cpu", "1", "nvidia.com/gpu", "2", "nvidia.com/gpumem", "3000"}, nil,
			`{"version":"v1alpha1","containers":{"a":{"gpus":2,"memMiB":3000}}}`, "hami"},
		"gpushare": {[]string{"aliyun.com/gpu-mem", "3"}, map[string]string{"example.com/a": "b"},
			`{"version":"v1alpha1","containers":{"a":{"gpus":1,"memMiB":3072}}}`, "gpushare/GiB"},
		"kai": {nil, map[string]string{"gpu-fraction": "0.5"},
			`{"version":"v1alpha1","containers":{"a":{"gpus":1,"memPercent":50}}}`, "kai"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(container("a", c.limits...), container("b"))
			pod.Annotations = c.annotations
			raw := marshal(t, pod)
			if untouched := ours().Handle(context.Background(), request(raw)); !untouched.Allowed || len(untouched.Patch) > 0 {
				t.Fatalf("translated although the dialect is off: %s", untouched.Patch)
			}
			hook := everybodys(t)
			response := hook.Handle(context.Background(), request(raw))
			if !response.Allowed {
				t.Fatal(response.Result)
			}
			patched := apply(t, raw, response)
			got := &corev1.Pod{}
			must.Do(t, json.Unmarshal(patched, got))
			if got.Annotations[api.AnnotationShares] != c.want || got.Annotations[api.AnnotationDialect] != c.dialect {
				t.Errorf("annotations %v", got.Annotations)
			}
			for key, value := range c.annotations {
				if got.Annotations[key] != value {
					t.Errorf("annotation %s is %q", key, got.Annotations[key])
				}
			}
			if !slices.Contains(got.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: api.Gate}) {
				t.Errorf("gates %v", got.Spec.SchedulingGates)
			}
			again := hook.Handle(context.Background(), request(patched))
			if !again.Allowed || len(again.Patch) > 0 || len(again.Warnings) > 0 {
				t.Errorf("a second round says %v, warns %q and patches %s", again.Result, again.Warnings, again.Patch)
			}
		})
	}
}

// Everything that is wrong is said at once, by the translation and after it, and
// what somebody else has said of the dialect is not believed.
func TestDialectRefusals(t *testing.T) {
	pod := podOf(container("a", "nvidia.com/gpu", "17"))
	pod.Spec.HostPID = true
	pod.Annotations = map[string]string{api.AnnotationDialect: "gpushare/MiB"}
	response := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
	if response.Allowed || len(response.Result.Details.Causes) != 3 {
		t.Fatalf("%+v", response)
	}
	for i, field := range []string{"spec.containers[0].resources.limits[nvidia.com/gpu]", "metadata.annotations[vernier.dev/dialect]", "spec.hostPID"} {
		if got := response.Result.Details.Causes[i].Field; got != field {
			t.Errorf("cause %d is about %s, want %s", i, got, field)
		}
	}
	if !strings.Contains(response.Result.Message, "from 1 to 16") {
		t.Error(response.Result.Message)
	}
}

// What the webhook takes from a device plugin is guarded as before.
func TestDialectGuards(t *testing.T) {
	pod := podOf(container("a", "aliyun.com/gpu-mem", "1"), container("b", "nvidia.com/mig-1g.5gb", "1"))
	response := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
	if response.Allowed || !strings.Contains(response.Result.Message, "from both") {
		t.Errorf("%+v", response)
	}
}

// aliases is a YAML list that stands for a hundred times its size, and so does each list
// of such lists.
func aliases(size int) string {
	return "[&a " + strings.Repeat("x", size/2) + strings.Repeat(",*a", size/6) + "]"
}

// bomb is a pod with a share, changed.
func bomb(change func(*corev1.Pod)) *corev1.Pod {
	pod := podOf(container("train", "vernier.dev/gpu-core", "30"))
	pod.Annotations = map[string]string{}
	change(pod)
	return pod
}

func copies(n int, c corev1.Container) []corev1.Container {
	list := make([]corev1.Container, n)
	for i := range list {
		list[i] = c
		list[i].Name = fmt.Sprintf("c%d", i)
	}
	return list
}

// bombs are pods that cost more to read than they are worth, by what refuses them.
var bombs = map[string]struct {
	pod           *corev1.Pod
	field, remedy string
}{
	"YAML aliases": {bomb(func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = aliases(600) }),
		"metadata.annotations[required-plugins.noderesource.dev/pod]", "without YAML anchors and aliases"},
	"long YAML": {bomb(func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = aliases(85 << 10) }),
		"metadata.annotations[required-plugins.noderesource.dev/pod]", "4096 are allowed"},
	"YAML of a container": {bomb(func(p *corev1.Pod) { p.Annotations[api.RequiredPluginsPrefix+"container.train"] = "&a [*a]" }),
		"metadata.annotations[required-plugins.noderesource.dev/container.train]", "correct or remove it"},
	"YAML that grows as JSON": {bomb(func(p *corev1.Pod) {
		var names []string
		for i := range 1300 {
			names = append(names, fmt.Sprintf("%c%c", 'a'+i/26%26, 'a'+i%26))
		}
		p.Annotations[api.AnnotationRequiredPlugins] = "[" + strings.Join(names, ",") + ",\"" + strings.Repeat("<", 190) + "\"]"
	}), "metadata.annotations[required-plugins.noderesource.dev/pod]", "of at most 4096 bytes"},
	"allow list": {bomb(func(p *corev1.Pod) { p.Annotations[api.AnnotationGPUUUID] = strings.Repeat("a,", 125000) + "a" }),
		"metadata.annotations[vernier.dev/gpu-uuid]", "4096 are allowed"},
	"many annotations": {bomb(func(p *corev1.Pod) {
		for i := range 20_000 {
			p.Annotations[fmt.Sprintf("k%d", i)] = ""
		}
	}), "metadata.annotations", "at most 256"},
	"large annotations": {bomb(func(p *corev1.Pod) { p.Annotations["example.com/a"] = strings.Repeat("a", 257<<10) }),
		"metadata.annotations", "may not be more than 262144 bytes"},
	"many containers": {bomb(func(p *corev1.Pod) { p.Spec.Containers = append(copies(64, corev1.Container{}), p.Spec.Containers...) }),
		"spec.containers", "at most 64"},
	"many shares": {bomb(func(p *corev1.Pod) { p.Spec.Containers = copies(17, p.Spec.Containers[0]) }),
		"spec.containers", "at most 16 containers of a pod may ask for a share"},
	"many capabilities": {bomb(func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: make([]corev1.Capability, 257)}}
	}), "spec.containers", "at most 256: these are the capabilities"},
	"many volumes": {bomb(func(p *corev1.Pod) { p.Spec.Volumes = make([]corev1.Volume, 513) }), "spec.volumes", "at most 512"},
	"many lists of plugins": {bomb(func(p *corev1.Pod) {
		for i := range 17 {
			p.Annotations[fmt.Sprintf("%scontainer.c%d", api.RequiredPluginsPrefix, i)] = `["a"]`
		}
	}), "metadata.annotations", "at most 16 annotations"},
	"a long host path": {bomb(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: strings.Repeat("/d", 129)}}}}
	}), "spec.volumes[0].hostPath.path", "may not be more than 256"},
	"a host path in another form": {bomb(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data/./x"}}}}
	}), "spec.volumes[0].hostPath.path", "write it as /data/x"},
	"many tolerations": {bomb(func(p *corev1.Pod) { p.Spec.Tolerations = make([]corev1.Toleration, 65) }), "spec", "have 65 terms and requirements, a pod with a share may have 64"},
	"a long affinity": {bomb(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: strings.Repeat("k", 16<<10)}}}}
	}), "spec", "use fewer or shorter terms"},
	"many gates": {bomb(func(p *corev1.Pod) {
		for i := range 33 {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: fmt.Sprintf("example.com/g%d", i)})
		}
	}), "spec.schedulingGates", "at most 32"},
	"many host paths": {bomb(func(p *corev1.Pod) {
		for i := range 33 {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}})
		}
	}), "spec.volumes", "at most 32 volumes of type hostPath"},
}

// What a tenant writes is bounded before anything else reads it, and the answer names the
// field and the remedy in a few lines.
func TestHostilePods(t *testing.T) {
	for name, tt := range bombs {
		t.Run(name, func(t *testing.T) {
			for dialects, hook := range map[string]*admission.Webhook{"none": ours(), "all": everybodys(t)} {
				response := hook.Handle(context.Background(), request(marshal(t, tt.pod)))
				if response.Allowed || response.Result.Code != http.StatusUnprocessableEntity {
					t.Fatalf("dialects %s: want it refused, got %+v", dialects, response.Result)
				}
				causes := response.Result.Details.Causes
				if len(causes) != 1 || causes[0].Field != tt.field || !strings.Contains(causes[0].Message, tt.remedy) {
					t.Errorf("dialects %s: got %.400v, want one cause on %s that says %q", dialects, causes, tt.field, tt.remedy)
				}
				if len(response.Result.Message) > 4096 {
					t.Errorf("dialects %s: the answer has %d bytes", dialects, len(response.Result.Message))
				}
			}
		})
	}
}

// An answer stays readable however much is wrong.
func TestHostileErrors(t *testing.T) {
	pod := bomb(func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, copies(60, container("", "nvidia.com/gpu", "1"))...)
	})
	response := ours().Handle(context.Background(), request(marshal(t, pod)))
	causes := response.Result.Details.Causes
	if len(causes) != 33 || !strings.Contains(causes[32].Message, "28 more errors") {
		t.Errorf("%d causes, the last is %v", len(causes), causes[len(causes)-1])
	}
}

// A pod of that size that asks for nothing is none of the webhook's business.
func TestHostilePodsThatAskForNothing(t *testing.T) {
	for name, tt := range bombs {
		pod := tt.pod.DeepCopy()
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
		if response := everybodys(t).Handle(context.Background(), request(marshal(t, pod))); !response.Allowed || len(response.Patch) > 0 {
			t.Errorf("%s, without a share: %+v", name, response.Result)
		}
	}
}

func TestRules(t *testing.T) {
	hook := &admission.Webhook{Handler: handler.Pods(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{
		Minimum: demand.Minimum{MemMiB: 512, Percent: 5}, AllowedHostPaths: []string{"/data"}}))}
	for name, tt := range map[string]struct{ limits, path, want string }{
		"enough":             {limits: "vernier.dev/gpu-mem-mib=512", path: "/data/models"},
		"too few MiB":        {limits: "vernier.dev/gpu-mem-mib=511", want: "limits[vernier.dev/gpu-mem-mib]: Invalid value: 511: this cluster gives at least 512 MiB of a GPU: ask for 512 or more"},
		"too few MiB of two": {limits: "vernier.dev/gpu-mem-mib=1022,vernier.dev/gpu=2", want: "ask for 1024 or more"},
		"too few percent":    {limits: "vernier.dev/gpu-core=4,vernier.dev/gpu-mem=5", want: "limits[vernier.dev/gpu-core]: Invalid value: 4: this cluster gives at least 5 percent"},
		"another folder":     {limits: "vernier.dev/gpu-core=5", path: "/models", want: "is not within what this cluster allows, /data"},
		"a longer name":      {limits: "vernier.dev/gpu-core=5", path: "/data2", want: "is not within what this cluster allows"},
	} {
		pod := podOf(container("train", strings.FieldsFunc(tt.limits, func(r rune) bool { return r == '=' || r == ',' })...))
		if tt.path != "" {
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: tt.path}}}}
		}
		response := hook.Handle(context.Background(), request(marshal(t, pod)))
		if response.Allowed != (tt.want == "") || !response.Allowed && !strings.Contains(response.Result.Message, tt.want) {
			t.Errorf("%s: %+v, want %q", name, response.Result, tt.want)
		}
	}
}

// FuzzPlugins: whatever stands in an annotation that containerd reads as YAML.
func FuzzPlugins(f *testing.F) {
	for _, seed := range []string{aliases(85 << 10), aliases(4000), "- &a [x]\n- *a", "&a [*a]", "{<<: &a {a: b}, c: *a}",
		strings.Repeat("[", 4096), strings.Repeat("- ", 2000), `["a","b"]`, "!!binary |\n  YQ==", "? a\n: b"} {
		f.Add(seed)
	}
	hook := ours()
	f.Fuzz(func(t *testing.T, list string) {
		pod := bomb(func(p *corev1.Pod) { p.Annotations[api.AnnotationRequiredPlugins] = list })
		raw := marshal(t, pod)
		response := hook.Handle(context.Background(), request(raw))
		if !response.Allowed {
			return
		}
		patched := apply(t, raw, response)
		if again := hook.Handle(context.Background(), request(patched)); !again.Allowed || len(again.Patch) > 0 {
			t.Errorf("a second round on %q says %v and patches %s", list, again.Result, again.Patch)
		}
	})
}
