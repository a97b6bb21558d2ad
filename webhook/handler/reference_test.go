// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
)

// mutate is the plain way to do what the handler does to a valid pod: on the
// whole corev1.Pod, sharing no code with it.
func mutate(pod *corev1.Pod) error {
	shares := api.Shares{Version: "v1alpha1", Containers: map[string]api.Share{}}
	lists := [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers}
	for _, c := range slices.Concat(lists...) {
		if share, shared := plainShare(c.Resources.Limits); shared {
			shares.Containers[c.Name] = share
		}
	}
	if len(shares.Containers) == 0 {
		return nil
	}
	for _, list := range lists {
		for i := range list {
			share, shared := plainShare(list[i].Resources.Limits)
			for name, n := range map[corev1.ResourceName]int64{"vernier.dev/gpu": int64(share.GPUs), "vernier.dev/gpu-mem": int64(share.GPUs) * int64(share.MemPercent)} {
				if _, given := list[i].Resources.Limits[name]; shared && !given && n > 0 {
					count := *resource.NewQuantity(n, resource.DecimalSI)
					list[i].Resources.Limits[name] = count
					if list[i].Resources.Requests != nil {
						list[i].Resources.Requests[name] = count
					}
				}
			}
			list[i].Env = slices.DeleteFunc(list[i].Env, func(e corev1.EnvVar) bool {
				return e.Name == "NVIDIA_VISIBLE_DEVICES" || shared && strings.HasPrefix(e.Name, "CUDA_MPS_")
			})
		}
	}
	text, err := json.Marshal(shares)
	if err != nil {
		return err
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["vernier.dev/shares"] = string(text)
	gate := corev1.PodSchedulingGate{Name: "vernier.dev/placement"}
	if !slices.Contains(pod.Spec.SchedulingGates, gate) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, gate)
	}
	return requirePlugin(pod.Annotations)
}

func plainShare(limits corev1.ResourceList) (api.Share, bool) {
	of := func(name corev1.ResourceName) int64 { q := limits[name]; return q.Value() }
	core, mem, mib, gpus := of("vernier.dev/gpu-core"), of("vernier.dev/gpu-mem"), of("vernier.dev/gpu-mem-mib"), of("vernier.dev/gpu")
	if core+mem+mib == 0 {
		return api.Share{}, false
	}
	if gpus == 0 {
		gpus = max(1, (core+99)/100)
	}
	if mem == 0 && mib == 0 {
		mem = core
	}
	return api.Share{GPUs: api.DeviceCount(gpus), Core: api.Percent(core / gpus),
		MemPercent: api.Percent(mem / gpus), MemMiB: api.MiB(mib / gpus)}, true
}

func requirePlugin(annotations map[string]string) error {
	const plain = "required-plugins.noderesource.dev"
	if _, ok := annotations[plain+"/pod"]; !ok {
		annotations[plain+"/pod"] = annotations[plain]
	}
	for key, value := range annotations {
		if key != plain+"/pod" && !strings.HasPrefix(key, plain+"/container.") {
			continue
		}
		var plugins []string
		if err := yaml.Unmarshal([]byte(value), &plugins); err != nil {
			return err
		}
		if !slices.Contains(plugins, "vernier") {
			plugins = append(plugins, "vernier")
		}
		text, err := json.Marshal(plugins)
		if err != nil {
			return err
		}
		annotations[key] = string(text)
	}
	return nil
}

// generic is the handler that controller-runtime's documentation shows: decode
// the pod, change it, marshal it, let a diff make the patch.
type generic struct{ decoder admission.Decoder }

func (g generic) Handle(_ context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := g.decoder.Decode(req, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if err := mutate(pod); err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, changed)
}
