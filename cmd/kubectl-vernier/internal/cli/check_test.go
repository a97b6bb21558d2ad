// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// The names and the versions are those of the chart.
func TestCheckNamesAll(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	found := map[string]bool{}
	for _, file := range must.Get(filepath.Glob(filepath.Join(root, "deploy/manifests/admission/*.yaml")))(t) {
		for _, m := range regexp.MustCompile(`(?m)^kind: ValidatingAdmissionPolicy\nmetadata:\n  name: (\S+)$`).FindAllStringSubmatch(string(must.Get(os.ReadFile(file))(t)), -1) {
			found[m[1]] = true
		}
	}
	for _, name := range policies {
		if !found[name] {
			t.Errorf("the chart has no policy %s", name)
		}
		delete(found, name)
	}
	if len(found) > 0 {
		t.Errorf("check does not know %v", found)
	}
	chart, makefile := string(must.Get(os.ReadFile(filepath.Join(root, "deploy/chart/Chart.yaml")))(t)), string(must.Get(os.ReadFile(filepath.Join(root, "Makefile")))(t))
	if !strings.Contains(chart, `kubeVersion: ">=`+oldestKubernetes.String()+"-0") || !strings.Contains(makefile, "VERNIER_CONTAINERD_VERSION=v"+oldestContainerd.String()) {
		t.Errorf("Chart.yaml or the Makefile has other versions than %s and %s", oldestKubernetes, oldestContainerd)
	}
}

// sound is a cluster on which all is as it should be, by kind and name.
func sound() map[string]client.Object {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: v1alpha1.SystemNamespace}
	}
	pod := func(name string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example:5000/" + name + ":0.1.0"}}}}
	}
	all := map[string]client.Object{
		"webhook":   &appsv1.Deployment{ObjectMeta: meta("vernier-webhook"), Spec: appsv1.DeploymentSpec{Template: pod("w")}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1}},
		"allocator": &appsv1.Deployment{ObjectMeta: meta("vernier-allocator"), Spec: appsv1.DeploymentSpec{Template: pod("a")}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1}},
		"agent": &appsv1.DaemonSet{ObjectMeta: meta("vernier-node"), Spec: appsv1.DaemonSetSpec{Template: pod("n")},
			Status: appsv1.DaemonSetStatus{NumberReady: 1, DesiredNumberScheduled: 1}},
		"config": &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "vernier-webhook"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "pods.vernier.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: authority}}}},
		"node": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{v1alpha1.LabelGPUNode: v1alpha1.LabelGPUNodeTrue}},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.4.2"}}},
		"ledger": &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Status: v1alpha1.SliceLedgerStatus{
			Devices:    []v1alpha1.DeviceStatus{{UUID: gpuA}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}}}},
		"namespace": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}},
	}
	for _, name := range policies {
		all["policy "+name] = &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		all["binding "+name] = &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}}
	}
	all["binding "+onlyWarns].(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn}
	return all
}

func client0(t *testing.T, all map[string]client.Object) client.WithWatch {
	t.Helper()
	var objects []client.Object
	for _, o := range all {
		if o != nil {
			objects = append(objects, o)
		}
	}
	return fakeClient(t, objects...)
}

// Each thing that is missing or wrong is named, with its remedy, and nothing else is.
func TestCheck(t *testing.T) {
	for name, row := range map[string]struct {
		change func(all map[string]client.Object)
		want   string // the one line that is missing, all being ok where it is empty
	}{
		"sound": {change: func(map[string]client.Object) {}},
		"no policy": {change: func(all map[string]client.Object) { delete(all, "policy vernier-pods") },
			want: `policies missing 1 of \d+ lack .*: vernier-pods\. Install`},
		"a binding that only warns": {change: func(all map[string]client.Object) {
			all["binding vernier-limits"].(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec.ValidationActions = []admissionregistrationv1.ValidationAction{"Warn"}
		}, want: `policies missing 1 of \d+ lack .*: vernier-limits\.`},
		"no webhook": {change: func(all map[string]client.Object) { delete(all, "config") }, want: `certificate missing There is no MutatingWebhookConfiguration`},
		"no bundle": {change: func(all map[string]client.Object) {
			all["config"].(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks[0].ClientConfig.CABundle = nil
		}, want: `certificate missing .* caBundle is empty\. Its source`},
		"no allocator": {change: func(all map[string]client.Object) { delete(all, "allocator") }, want: `vernier-allocator missing There is no deployment`},
		"agent not ready": {change: func(all map[string]client.Object) {
			all["agent"].(*appsv1.DaemonSet).Status.DesiredNumberScheduled = 2
		}, want: `vernier-node missing 1 of 2 pods are ready, release 0\.1\.0\. .kubectl describe ds/vernier-node`},
		"half an upgrade": {change: func(all map[string]client.Object) {
			all["webhook"].(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image = "w:0.2.0@sha256:abc"
		}, want: `release missing The components are of 2 releases\. Finish the upgrade`},
		"no label on nodes": {change: func(all map[string]client.Object) { all["node"].SetLabels(nil) }, want: `nodes missing No node .* .kubectl label node NODE vernier.dev/gpu-node=true`},
		"old containerd": {change: func(all map[string]client.Object) {
			all["node"].(*corev1.Node).Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.9"
		}, want: `node/gpu-1 missing .*2\.1\.9\. Vernier needs containerd 2\.2 or newer`},
		"CRI-O": {change: func(all map[string]client.Object) {
			all["node"].(*corev1.Node).Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.36.0"
		}, want: `node/gpu-1 missing .*cri-o://1\.36\.0\. Vernier needs containerd`},
		"no ledger": {change: func(all map[string]client.Object) { delete(all, "ledger") }, want: `node/gpu-1 missing It has no ledger\. The node agent makes it`},
		"no validator": {change: func(all map[string]client.Object) {
			all["ledger"].(*v1alpha1.SliceLedger).Status.Conditions[0] = metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "RuntimeUnguarded", Message: "enable it."}
		}, want: `node/gpu-1 missing RuntimeUnguarded: enable it\. docs/troubleshooting`},
		"device plugin": {change: func(all map[string]client.Object) {
			all["node"].(*corev1.Node).Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
		}, want: `node/gpu-1 missing NVIDIA's device plugin`},
		"no namespace": {change: func(all map[string]client.Object) { delete(all, "namespace") }, want: `namespaces missing .*kubectl label namespace`},
	} {
		t.Run(name, func(t *testing.T) {
			all := sound()
			row.change(all)
			out, _, err := run(t, client0(t, all), "check")
			var missing []string
			for line := range strings.Lines(out) {
				if line = strings.Join(strings.Fields(line), " "); strings.Contains(line, " missing ") {
					missing = append(missing, line)
				} else if !strings.Contains(line, " ok ") && !strings.HasPrefix(line, "CHECK ") {
					t.Errorf("line %q", line)
				}
			}
			if row.want == "" {
				if err != nil || len(missing) > 0 {
					t.Fatalf("%v\n%s", err, out)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "1 of ") || len(missing) != 1 || !regexp.MustCompile("^"+row.want).MatchString(missing[0]) {
				t.Errorf("error %v, want the line %q:\n%s", err, row.want, out)
			}
		})
	}
}

// What the user may not read is unknown, and no failure; where nothing can be read, the error says how to connect.
func TestCheck_Unknown(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "", errors.New("no"))
	deny := func(err error) client.Client {
		return interceptor.NewClient(client0(t, sound()), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return err },
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return err
			},
		})
	}
	out, _, err := run(t, deny(forbidden), "check")
	if n := strings.Count(out, "unknown"); err != nil || n != 8 || !strings.Contains(strings.Join(strings.Fields(out), " "), "--clusterrole=vernier-check") {
		t.Errorf("%d are unknown, error %v:\n%s", n, err, out)
	}
	if _, _, err := run(t, deny(apierrors.NewUnauthorized("who")), "check"); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("a login that is refused: %v", err)
	}
	if out, _, err := run(t, client0(t, sound()), "check -o json"); err != nil || !strings.Contains(out, `"state": "ok"`) {
		t.Errorf("%v\n%s", err, out)
	}
}
