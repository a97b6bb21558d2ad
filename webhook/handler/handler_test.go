// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
)

// The managed fields are the pod's audit trail: no operation of the patch touches them.
func TestManagedFieldsAreLeftAlone(t *testing.T) {
	pod := podOf(container("train", "vernier.dev/gpu-core", "30"))
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}}
	response, got := admit(t, pod)
	if !response.Allowed || !equality.Semantic.DeepEqual(got.ManagedFields, pod.ManagedFields) {
		t.Errorf("managed fields %v, allowed %v", got.ManagedFields, response.Allowed)
	}
}

var gate = corev1.PodSchedulingGate{Name: v1alpha1.Gate}

// Where another webhook changes the compute between two rounds of admission, the memory that was written
// down for it follows, and that of the author stays.
func TestMemoryFollowsCompute(t *testing.T) {
	for name, tt := range map[string]struct {
		limits            []string
		core, mem, shares string
	}{
		"left out":  {[]string{"vernier.dev/gpu-core", "30"}, "60", "60", `{"gpus":1,"core":60,"memPercent":60}`},
		"said":      {[]string{"vernier.dev/gpu-core", "30", "vernier.dev/gpu-mem", "25"}, "60", "25", `{"gpus":1,"core":60,"memPercent":25}`},
		"two GPUs":  {[]string{"vernier.dev/gpu-core", "120"}, "160", "160", `{"gpus":2,"core":80,"memPercent":80}`},
		"taken out": {[]string{"vernier.dev/gpu-core", "30"}, "0", "", ""},
	} {
		_, pod := admit(t, podOf(container("train", tt.limits...)))
		for _, list := range []corev1.ResourceList{pod.Spec.Containers[0].Resources.Limits, pod.Spec.Containers[0].Resources.Requests} {
			list["vernier.dev/gpu-core"] = resource.MustParse(tt.core)
		}
		response, got := admit(t, pod)
		if response.Allowed != (tt.shares != "") {
			t.Errorf("%s: allowed is %v: %+v", name, response.Allowed, response.Result)
		}
		if !response.Allowed {
			continue
		}
		r := got.Spec.Containers[0].Resources
		mem, request := r.Limits["vernier.dev/gpu-mem"], r.Requests["vernier.dev/gpu-mem"]
		if mem.String() != tt.mem || request.String() != tt.mem || !strings.Contains(got.Annotations["vernier.dev/shares"], tt.shares) {
			t.Errorf("%s: %v, %s, want memory %s and %s", name, r, got.Annotations["vernier.dev/shares"], tt.mem, tt.shares)
		}
	}
}

func TestAdmitted(t *testing.T) {
	pod := podOf(
		container("train", "vernier.dev/gpu-core", "30", "vernier.dev/gpu-mem", "25", "cpu", "1"),
		container("serve", "vernier.dev/gpu-mem-mib", "2048", "vernier.dev/gpu", "2"),
		container("plain", "cpu", "1"))
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("sidecar", "vernier.dev/gpu-core", "5")
	sidecar.RestartPolicy = &always
	pod.Spec.InitContainers = []corev1.Container{container("init", "vernier.dev/gpu-core", "150"), sidecar}
	pod.Spec.Containers[2].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, {Name: "A", Value: "1"}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}

	response, got := admit(t, pod)
	if !response.Allowed {
		t.Fatalf("refused: %s", response.Result.Message)
	}
	want := pod.DeepCopy()
	want.Annotations = map[string]string{
		"vernier.dev/shares": `{"version":"v1alpha1","containers":{` +
			`"init":{"gpus":2,"core":75,"memPercent":75},` +
			`"serve":{"gpus":2,"memMiB":1024},` +
			`"sidecar":{"gpus":1,"core":5,"memPercent":5},` +
			`"train":{"gpus":1,"core":30,"memPercent":25}}}`,
		"required-plugins.noderesource.dev/pod": `["vernier"]`,
	}
	want.Spec.SchedulingGates = append(want.Spec.SchedulingGates, gate)
	// A ResourceQuota counts slices by this name.
	for c, gpus := range map[*corev1.Container]string{&want.Spec.Containers[0]: "1", &want.Spec.InitContainers[0]: "2", &want.Spec.InitContainers[1]: "1"} {
		c.Resources.Limits["vernier.dev/gpu"], c.Resources.Requests["vernier.dev/gpu"] = resource.MustParse(gpus), resource.MustParse(gpus)
	}
	// Another counts memory in percent, also where it is that of compute.
	for i, mem := range []string{"150", "5"} {
		r := want.Spec.InitContainers[i].Resources
		r.Limits["vernier.dev/gpu-mem"], r.Requests["vernier.dev/gpu-mem"] = resource.MustParse(mem), resource.MustParse(mem)
	}
	want.Spec.Containers[2].Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got  %s\nwant %s", marshal(t, got), marshal(t, want))
	}
	if len(response.Warnings) != 1 || !strings.Contains(response.Warnings[0], "spec.containers[2].env[NVIDIA_VISIBLE_DEVICES]: removed") {
		t.Errorf("warnings %q", response.Warnings)
	}

	again, unchanged := admit(t, got)
	if !again.Allowed || len(again.Patch) > 0 || !equality.Semantic.DeepEqual(unchanged, got) {
		t.Errorf("a second round is not without effect: %s %v", again.Patch, again.Result)
	}
}

// Another webhook may change the resources after us: the second round writes the
// shares anew.
func TestReinvocation(t *testing.T) {
	_, pod := admit(t, podOf(container("train", "vernier.dev/gpu-core", "30")))
	list := corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("60")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: list, Requests: list}
	response, got := admit(t, pod)
	if !response.Allowed {
		t.Fatalf("refused: %s", response.Result.Message)
	}
	want := `{"version":"v1alpha1","containers":{"train":{"gpus":1,"core":60,"memPercent":60}}}`
	if got.Annotations[v1alpha1.AnnotationShares] != want {
		t.Errorf("shares %s, want %s", got.Annotations[v1alpha1.AnnotationShares], want)
	}
	if !slices.Equal(got.Spec.SchedulingGates, []corev1.PodSchedulingGate{gate}) {
		t.Errorf("gates %v", got.Spec.SchedulingGates)
	}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	if response, _ := admit(t, pod); response.Allowed {
		t.Error("a pod whose request was taken away after us would wait for ever: want it refused")
	}
}

// Invariant 5: a pod that asks for nothing is let through untouched, whatever
// else it has.
func TestNotOurs(t *testing.T) {
	plain := podOf(container("main", "cpu", "1", "nvidia.com/gpu", "1"))
	yes := true
	plain.Spec.HostPID, plain.Spec.NodeName = true, "n"
	plain.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	wishes := plain.DeepCopy()
	wishes.Annotations = map[string]string{"vernier.dev/mode": "mps"}
	for name, pod := range map[string]*corev1.Pod{"plain": plain, "with wishes only": wishes} {
		response, got := admit(t, pod)
		if !response.Allowed || len(response.Patch) > 0 || !equality.Semantic.DeepEqual(got, pod) {
			t.Errorf("%s: %v %s", name, response.Result, response.Patch)
		}
		if warned := len(response.Warnings) > 0; warned != (name == "with wishes only") {
			t.Errorf("%s: warnings %q", name, response.Warnings)
		}
	}
}

// Somebody waits for what a misspelt wish was to do, and for the share that is not asked for
// as a limit, whatever else the pod has.
func TestMisspelt(t *testing.T) {
	for _, pod := range []*corev1.Pod{podOf(container("main", "cpu", "1")), podOf(container("main", "vernier.dev/gpu-core", "30"))} {
		for key, want := range map[string]string{
			"vernier.dev/mod":      `Unsupported value: "vernier.dev/mod": supported values: "vernier.dev/mode"`,
			"vernier.dev/gpu-core": "move the line to its resources.limits",
			"vernier.dev/gpu-cor":  "Unsupported value",
		} {
			pod.Annotations = map[string]string{key: "30", "example.com/vernier.dev": "x"}
			response, _ := admit(t, pod)
			if response.Allowed || len(response.Result.Details.Causes) != 1 || !strings.Contains(response.Result.Message, "metadata.annotations["+key+"]: ") || !strings.Contains(response.Result.Message, want) {
				t.Errorf("%s: %+v, want it refused with %q", key, response.Result, want)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	yes := true
	asking := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := podOf(container("plain"), container("train", "vernier.dev/gpu-core", "30"))
		change(pod)
		return pod
	}
	annotated := func(key, value string) *corev1.Pod {
		return asking(func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} })
	}
	for name, tt := range map[string]struct {
		pod *corev1.Pod
		// want are fields and remedies, in the order of the causes.
		want []string
	}{
		"in an init container": {asking(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{container("init", "vernier.dev/gpu", "1")}
		}), []string{"spec.initContainers[0].resources.limits[vernier.dev/gpu-core]", "add vernier.dev/gpu-core"}},
		"pod level": {asking(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("5")}}
		}), []string{"spec.resources.limits[vernier.dev/gpu-core]", "move the line to the container"}},
		"node name":        {asking(func(p *corev1.Pod) { p.Spec.NodeName = "n" }), []string{"spec.nodeName", "nodeSelector"}},
		"host pid":         {asking(func(p *corev1.Pod) { p.Spec.HostPID = true }), []string{"spec.hostPID", "remove it"}},
		"mode":             {annotated("vernier.dev/mode", "fast"), []string{"metadata.annotations[vernier.dev/mode]", "use auto"}},
		"placement":        {annotated("vernier.dev/placement", "{}"), []string{"metadata.annotations[vernier.dev/placement]", "remove it"}},
		"shares":           {annotated("vernier.dev/shares", "{}"), []string{"metadata.annotations[vernier.dev/shares]", "remove it"}},
		"cdi":              {annotated("nvidia.cdi.k8s.io", "nvidia.com/gpu=all"), []string{"metadata.annotations[nvidia.cdi.k8s.io]", "remove it"}},
		"required plugins": {annotated("required-plugins.noderesource.dev", "{"), []string{"metadata.annotations[required-plugins.noderesource.dev]", "correct or remove it"}},
		"exclusive, a part": {annotated("vernier.dev/mode", "exclusive"),
			[]string{"metadata.annotations[vernier.dev/mode]", "container train asks for a part of a GPU. Use auto or limiter"}},
		"mig over several GPUs": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/mode": "mig"}
			p.Spec.Containers[1] = container("train", "vernier.dev/gpu-core", "30", "vernier.dev/gpu", "2")
		}), []string{"metadata.annotations[vernier.dev/mode]", "container train asks for 2 GPUs", "ask for one GPU"}},
		"mps over several GPUs": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/mode": "mps"}
			p.Spec.Containers[1] = container("train", "vernier.dev/gpu-core", "30", "vernier.dev/gpu", "2")
		}), []string{"metadata.annotations[vernier.dev/mode]", "container train asks for 2 GPUs, and in mode mps"}},
		"mps with /dev/shm of its own": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/mode": "mps"}
			p.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/dev/shm"}}
		}), []string{"spec.containers[1].volumeMounts[0].mountPath", "Remove the mount"}},
		"burst, no quota": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/burst": "idle"}
			p.Spec.Containers[1] = container("train", "vernier.dev/gpu-mem", "30")
		}), []string{"metadata.annotations[vernier.dev/burst]", "remove it, or ask for vernier.dev/gpu-core"}},
		"burstable, no quota": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/qos": "burstable"}
			p.Spec.Containers[1] = container("train", "vernier.dev/gpu-mem", "30")
		}), []string{"metadata.annotations[vernier.dev/qos]", "remove it, or ask for vernier.dev/gpu-core"}},
		"burstable, another mode": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/qos": "burstable", "vernier.dev/mode": "mps"}
		}), []string{"metadata.annotations[vernier.dev/qos]", "use mode limiter, or remove it"}},
		"one GPU, a container with several": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/same-gpu": "required"}
			p.Spec.Containers[0] = container("plain", "vernier.dev/gpu-core", "10")
			p.Spec.Containers[1] = container("train", "vernier.dev/gpu-core", "30", "vernier.dev/gpu", "2")
		}), []string{"metadata.annotations[vernier.dev/same-gpu]", "container train asks for 2 GPUs: ask for one, or remove the annotation"}},
		"one GPU, exclusive": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/same-gpu": "required", "vernier.dev/mode": "exclusive"}
			p.Spec.Containers = []corev1.Container{container("a", "vernier.dev/gpu-core", "100"), container("b", "vernier.dev/gpu-core", "100")}
		}), []string{"metadata.annotations[vernier.dev/same-gpu]", "mode exclusive gives each container a whole GPU: use another mode"}},
		"one GPU, too much together": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/same-gpu": "required"}
			p.Spec.Containers = []corev1.Container{container("a", "vernier.dev/gpu-core", "60", "vernier.dev/gpu-mem", "30"),
				container("b", "vernier.dev/gpu-mem", "71"), container("c", "vernier.dev/gpu-core", "41", "vernier.dev/gpu-mem-mib", "10")}
		}), []string{"metadata.annotations[vernier.dev/same-gpu]", "containers a, c run at the same time and ask for 101 % of a GPU's compute together: ask for 100 or less",
			"metadata.annotations[vernier.dev/same-gpu]", "containers a, b run at the same time and ask for 101 % of a GPU's memory together"}},
		"one GPU, too much beside a sidecar": {asking(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"vernier.dev/same-gpu": "required"}
			always := corev1.ContainerRestartPolicyAlways
			side, init := container("side", "vernier.dev/gpu-core", "50"), container("init", "vernier.dev/gpu-core", "51")
			side.RestartPolicy = &always
			p.Spec.InitContainers = []corev1.Container{side, init}
		}), []string{"metadata.annotations[vernier.dev/same-gpu]", "containers side, init run at the same time and ask for 101 % of a GPU's compute",
			"metadata.annotations[vernier.dev/same-gpu]", "101 % of a GPU's memory"}},
		"privileged neighbour": {asking(func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}), []string{"spec.containers[0].securityContext.privileged", "a pod without a share"}},
		"host path": {asking(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/run"}}}}
		}), []string{"spec.volumes[0].hostPath.path", "mount a narrower folder"}},
		"whole GPU too": {asking(func(p *corev1.Pod) { p.Spec.Containers[0] = container("plain", "nvidia.com/gpu", "1") }),
			[]string{"spec.containers[0].resources.limits[nvidia.com/gpu]", "remove the one or the other"}},
		"our environment": {asking(func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VERNIER_SLICE"}} }),
			[]string{"spec.containers[0].env[0].name", "choose another"}},
		"asks nothing, has shares and a gate": {func() *corev1.Pod {
			pod := podOf(container("main"))
			pod.Annotations = map[string]string{"vernier.dev/shares": "{}", "vernier.dev/placement": "{}"}
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{gate}
			return pod
		}(), []string{"metadata.annotations[vernier.dev/placement]", "remove it", "metadata.annotations[vernier.dev/shares]", "remove it",
			"spec.schedulingGates[vernier.dev/placement]", "remove it"}},
		"several at once": {asking(func(p *corev1.Pod) {
			p.Spec.HostPID = true
			p.Annotations = map[string]string{"vernier.dev/qos": "none"}
			p.Spec.Containers[1] = container("train", "vernier.dev/gpu-core", "101", "vernier.dev/gpu-mem", "7")
		}), []string{"metadata.annotations[vernier.dev/qos]", "use guaranteed", "spec.hostPID", "remove it",
			"spec.containers[1].resources.limits[vernier.dev/gpu-core]", "Ask for 100 or 102",
			"spec.containers[1].resources.limits[vernier.dev/gpu-mem]", "ask for 6 or 8"}},
	} {
		t.Run(name, func(t *testing.T) {
			response, _ := admit(t, tt.pod)
			if response.Allowed || response.Result.Code != http.StatusUnprocessableEntity {
				t.Fatalf("want it refused as invalid, got %+v", response.Result)
			}
			causes := response.Result.Details.Causes
			if len(causes) != len(tt.want)/2 {
				t.Fatalf("got %d causes, want %d: %s", len(causes), len(tt.want)/2, response.Result.Message)
			}
			for i, cause := range causes {
				if cause.Field != tt.want[2*i] || !strings.Contains(cause.Message, tt.want[2*i+1]) {
					t.Errorf("cause %d is %s: %s\nwant %s: … %s", i, cause.Field, cause.Message, tt.want[2*i], tt.want[2*i+1])
				}
				if !strings.Contains(response.Result.Message, cause.Field) {
					t.Errorf("the message %q does not name %s", response.Result.Message, cause.Field)
				}
			}
		})
	}
}

func TestExclusive(t *testing.T) {
	pod := podOf(container("train", "vernier.dev/gpu-core", "200"))
	pod.Annotations = map[string]string{"vernier.dev/mode": "exclusive"}
	if response, _ := admit(t, pod); !response.Allowed {
		t.Errorf("two whole GPUs: %s", response.Result.Message)
	}
}

// What never runs at the same time is not added up.
func TestSameGPU(t *testing.T) {
	pod := podOf(container("a", "vernier.dev/gpu-core", "50"), container("b", "vernier.dev/gpu-core", "50"), container("plain"))
	pod.Annotations = map[string]string{"vernier.dev/same-gpu": "required"}
	pod.Spec.InitContainers = []corev1.Container{container("i", "vernier.dev/gpu-core", "100"), container("j", "vernier.dev/gpu-core", "100")}
	if response, _ := admit(t, pod); !response.Allowed || len(response.Warnings) > 0 {
		t.Errorf("%v, warnings %q", response.Result, response.Warnings)
	}
}

func TestNoPod(t *testing.T) {
	for _, raw := range []string{`{"spec":"vernier.dev/"}`, `{"kind":"vernier.dev/"}`, `vernier.dev/`, `null vernier.dev/`} {
		response := ours().Handle(context.Background(), request([]byte(raw)))
		if response.Allowed || response.Result.Code != http.StatusBadRequest {
			t.Errorf("%s: %+v", raw, response.Result)
		}
	}
}

// A dry run is answered whether there is room now, and is admitted as the pod itself would be.
func TestDryRun(t *testing.T) {
	req := request(marshal(t, podOf(container("train", "vernier.dev/gpu-core", "30"))))
	real := ours().Handle(context.Background(), req)
	dry := true
	req.DryRun = &dry
	asked := ours().Handle(context.Background(), req)
	if len(asked.Warnings) != 1 || asked.Warnings[0] != fleet.NotLooked || len(real.Warnings) > 0 {
		t.Errorf("a dry run is warned %q, a pod %q", asked.Warnings, real.Warnings)
	}
	if asked.Warnings = nil; !reflect.DeepEqual(asked, real) {
		t.Errorf("a dry run is answered %+v, a pod %+v", asked, real)
	}
}
