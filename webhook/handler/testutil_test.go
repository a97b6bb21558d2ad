// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
	"vernier.dev/vernier/webhook/podtemplate"
)

// ours is the handler behind controller-runtime's wrapper, as it is served.
func ours() *admission.Webhook {
	return &admission.Webhook{Handler: handler.Pods(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{}))}
}

// everybodys is the handler with every dialect switched on.
func everybodys(t testing.TB) *admission.Webhook {
	t.Helper()
	dialects := must.Get(dialect.Settings{Dialects: "all"}.Set())(t)
	return &admission.Webhook{Handler: handler.Pods(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects}))}
}

// request is the admission request for an object as the API server encodes it.
func request(raw []byte) admission.Request {
	var req admission.Request
	req.UID = "1"
	req.Object = runtime.RawExtension{Raw: raw}
	return req
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	return must.Get(json.Marshal(v))(t)
}

// admit sends the pod to the handler and returns its answer and the pod after
// the patch.
func admit(t testing.TB, pod *corev1.Pod) (admission.Response, *corev1.Pod) {
	t.Helper()
	raw := marshal(t, pod)
	response := ours().Handle(context.Background(), request(raw))
	patched := &corev1.Pod{}
	must.Do(t, json.Unmarshal(apply(t, raw, response), patched))
	return response, patched
}

// apply applies the answer's patch, as the API server does.
func apply(t testing.TB, raw []byte, response admission.Response) []byte {
	t.Helper()
	if len(response.Patch) == 0 {
		return raw
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	if err != nil {
		t.Fatalf("patch %s: %v", response.Patch, err)
	}
	out, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("patch %s does not apply to %s: %v", response.Patch, raw, err)
	}
	return out
}

// podOf is a pod of the given containers.
func podOf(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "team"},
		Spec:       corev1.PodSpec{Containers: containers},
	}
}

// container asks for what pairs of name and quantity say.
func container(name string, limits ...string) corev1.Container {
	list := corev1.ResourceList{}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	return corev1.Container{Name: name, Image: "image", Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}
}
