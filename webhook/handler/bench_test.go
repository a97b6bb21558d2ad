// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// realistic is a pod as a Deployment's ReplicaSet makes it and the API server
// defaults it: two containers with environment, mounts and probes, and the
// managed fields. About 7 KB of JSON.
func realistic(b testing.TB, asks bool) []byte {
	b.Helper()
	pod := podOf(container("server", "cpu", "4", "memory", "16Gi"), container("proxy", "cpu", "250m", "memory", "128Mi"))
	if asks {
		pod.Spec.Containers[0] = container("server", "cpu", "4", "memory", "16Gi",
			"vernier.dev/gpu-core", "30", "vernier.dev/gpu-mem-mib", "20480")
	}
	pod.GenerateName, pod.Name = "server-6d5f8c7b9d-", ""
	pod.Labels = map[string]string{"app": "server", "pod-template-hash": "6d5f8c7b9d", "team": "search"}
	pod.Annotations = map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
		"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
	controller, grace, seconds := true, int64(30), int64(300)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "server-6d5f8c7b9d",
		UID: types.UID("4d6c6d1e-0f5f-4f7e-9d2b-6f0f3c1f5a11"), Controller: &controller, BlockOwnerDeletion: &controller}}
	for i := range pod.Spec.Containers {
		fill(&pod.Spec.Containers[i])
	}
	pod.Spec.ServiceAccountName, pod.Spec.TerminationGracePeriodSeconds = "default", &grace
	pod.Spec.DNSPolicy, pod.Spec.SchedulerName, pod.Spec.RestartPolicy = "ClusterFirst", "default-scheduler", "Always"
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &grace}
	for _, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds})
	}
	for _, name := range []string{"models", "cache", "config", "token"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}})
	}
	now := metav1.Now()
	pod.CreationTimestamp = now
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", Time: &now,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:prometheus.io/port":{},` +
			`"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{},"f:team":{}}},` +
			`"f:spec":{"f:containers":{"k:{\"name\":\"server\"}":{".":{},"f:image":{},"f:livenessProbe":{},"f:name":{},"f:ports":{}}}}}`)}}
	raw := marshal(b, pod)
	if len(raw) < 6<<10 || len(raw) > 8<<10 {
		b.Fatalf("the pod has %d bytes, want 6 to 8 KiB", len(raw))
	}
	return raw
}

func fill(c *corev1.Container) {
	c.Image, c.ImagePullPolicy = "registry.example.com/search/"+c.Name+":v1.42.0", "IfNotPresent"
	for i := range 18 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", i), Value: "https://config.example.com/setting"})
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"}}})
	for _, name := range []string{"models", "cache", "config", "token"} {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/var/run/" + name, ReadOnly: true})
	}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080), Scheme: "HTTP"}},
		TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}
	c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = probe, probe, probe
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}, {Name: "metrics", ContainerPort: 9090, Protocol: "TCP"}}
	no, user := false, int64(1000)
	c.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: &no, RunAsUser: &user,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", "File"
}

// BenchmarkHandler measures the handler beside the generic one that makes the
// same change to the same pod. "of-generic" is our time over its time.
func BenchmarkHandler(b *testing.B) {
	req := request(realistic(b, true))
	slim := ours()
	plain := &admission.Webhook{Handler: generic{admission.NewDecoder(kubernetes.Scheme)}}
	run := func(b *testing.B, hook *admission.Webhook) {
		b.ReportAllocs()
		for b.Loop() {
			if response := hook.Handle(context.Background(), req); !response.Allowed || len(response.Patch) == 0 {
				b.Fatal(response.Result)
			}
		}
	}
	var perGeneric float64
	b.Run("generic", func(b *testing.B) {
		run(b, plain)
		perGeneric = float64(b.Elapsed()) / float64(b.N)
	})
	b.Run("ours", func(b *testing.B) {
		run(b, slim)
		if perGeneric > 0 {
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/perGeneric, "of-generic")
		}
	})
}

// BenchmarkNotOurs measures a pod that asks for nothing, should it arrive, without
// dialects and with all of them.
func BenchmarkNotOurs(b *testing.B) {
	req := request(realistic(b, false))
	for name, hook := range map[string]*admission.Webhook{"plain": ours(), "all dialects": everybodys(b)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if response := hook.Handler.Handle(context.Background(), req); !response.Allowed {
					b.Fatal(response.Result)
				}
			}
		})
	}
}

// BenchmarkTranslated measures a pod of HAMi's.
func BenchmarkTranslated(b *testing.B) {
	raw := bytes.ReplaceAll(bytes.ReplaceAll(realistic(b, true), []byte(`vernier.dev/gpu-core`), []byte(`nvidia.com/gpucores`)),
		[]byte(`vernier.dev/gpu-mem-mib`), []byte(`nvidia.com/gpumem`))
	req, hook := request(raw), everybodys(b)
	b.ReportAllocs()
	for b.Loop() {
		if response := hook.Handle(context.Background(), req); !response.Allowed || len(response.Patch) == 0 {
			b.Fatal(response.Result)
		}
	}
}
