// SPDX-License-Identifier: Apache-2.0

// Package deploy_test owns what must hold of the manifests themselves: that what
// they name is there. The manifests have no Go of their own.
package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// kustomization is what the tests read of kustomization.yaml.
type kustomization struct {
	Resources []string
	Images    []struct{ Name, NewTag string }
}

// workload is a Deployment's or DaemonSet's pod template.
type workload struct {
	name, namespace string
	selector        *metav1.LabelSelector
	template        corev1.PodTemplateSpec
}

// Everything in manifests/ is installed, once, and nothing that is not there.
func TestKustomization(t *testing.T) {
	var found []string
	must.Do(t, filepath.WalkDir("manifests", func(path string, entry os.DirEntry, err error) error {
		if filepath.Ext(path) == ".yaml" {
			found = append(found, path)
		}
		return err
	}))
	listed := slices.Sorted(slices.Values(kustomize(t).Resources))
	if slices.Sort(found); !slices.Equal(found, listed) {
		t.Errorf("kustomization.yaml lists\n%q, there are\n%q", listed, found)
	}
}

// What the manifests name by name is in them.
func TestReferences(t *testing.T) {
	objects := everything(t)
	checkReferences(t, objects)
	var images []string
	for _, w := range workloads(t, objects) {
		for _, c := range w.template.Spec.Containers {
			name, _, _ := strings.Cut(c.Image, ":")
			images = append(images, name)
		}
	}
	var named []string
	for _, image := range kustomize(t).Images {
		named = append(named, image.Name)
	}
	slices.Sort(images)
	if slices.Sort(named); !slices.Equal(images, named) {
		t.Errorf("containers use images %q, kustomization.yaml names %q", images, named)
	}
}

// checkReferences looks for what objects name: service accounts, ports, volumes,
// the pods of a Service, roles and policies.
func checkReferences(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	has := func(kind, namespace, name string) bool {
		return slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == kind && o.GetNamespace() == namespace && o.GetName() == name
		})
	}
	works := workloads(t, objects)
	for _, w := range works {
		spec := w.template.Spec
		if !has("ServiceAccount", w.namespace, spec.ServiceAccountName) {
			t.Errorf("%s: no ServiceAccount %q", w.name, spec.ServiceAccountName)
		}
		if !matches(t, w.selector, w.template.Labels) {
			t.Errorf("%s: its selector does not match its pods", w.name)
		}
		for _, c := range spec.Containers {
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				if p == nil || !serves(&c, p.HTTPGet.Port) {
					t.Errorf("%s, container %s: a probe is missing or asks a port that is not there", w.name, c.Name)
				}
			}
			for _, m := range c.VolumeMounts {
				if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
					t.Errorf("%s, container %s: no volume %q", w.name, c.Name, m.Name)
				}
			}
		}
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "Service":
			var s corev1.Service
			decode(t, o, &s)
			for _, port := range s.Spec.Ports {
				if !slices.ContainsFunc(works, func(w workload) bool {
					return w.namespace == s.Namespace && matches(t, &metav1.LabelSelector{MatchLabels: s.Spec.Selector}, w.template.Labels) &&
						slices.ContainsFunc(w.template.Spec.Containers, func(c corev1.Container) bool { return serves(&c, port.TargetPort) })
				}) {
					t.Errorf("Service %s: no pod has its port %s", s.Name, port.TargetPort.String())
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			ref := o.Object["roleRef"].(map[string]any)
			namespace := map[string]string{"Role": o.GetNamespace()}[ref["kind"].(string)]
			if !has(ref["kind"].(string), namespace, ref["name"].(string)) {
				t.Errorf("%s %s: no %s %s", o.GetKind(), o.GetName(), ref["kind"], ref["name"])
			}
			for _, s := range o.Object["subjects"].([]any) {
				s := s.(map[string]any)
				if !has("ServiceAccount", s["namespace"].(string), s["name"].(string)) {
					t.Errorf("%s %s: no ServiceAccount %s", o.GetKind(), o.GetName(), s["name"])
				}
			}
		case "ValidatingAdmissionPolicyBinding":
			if name, _, _ := unstructured.NestedString(o.Object, "spec", "policyName"); !has("ValidatingAdmissionPolicy", "", name) {
				t.Errorf("ValidatingAdmissionPolicyBinding %s: no policy %q", o.GetName(), name)
			}
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			for _, hook := range o.Object["webhooks"].([]any) {
				ref, _, _ := unstructured.NestedMap(hook.(map[string]any), "clientConfig", "service")
				if !has("Service", fmt.Sprint(ref["namespace"]), fmt.Sprint(ref["name"])) {
					t.Errorf("%s: no Service %v", o.GetName(), ref)
				}
			}
		}
	}
}

// A program that is given a flag that it does not have ends at once, everywhere.
func TestArguments(t *testing.T) {
	objects := must.Get(manifests.Read("webhook.yaml", "allocator.yaml", "node.yaml"))(t)
	for _, w := range workloads(t, objects) {
		for _, c := range w.template.Spec.Containers {
			// -h prints every flag, and is no error of the program's own.
			out, _ := exec.CommandContext(t.Context(), "go", "run", "../cmd/"+c.Name, "-h").CombinedOutput()
			known := regexp.MustCompile(`(?m)^  -([a-z0-9-]+)`).FindAllStringSubmatch(string(out), -1)
			if len(known) == 0 {
				t.Fatalf("%s -h names no flag:\n%s", c.Name, out)
			}
			for _, arg := range append(slices.Clone(c.Command), c.Args...) {
				name, _, value := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
				if !strings.HasPrefix(arg, "--") || !value || !slices.ContainsFunc(known, func(k []string) bool { return k[1] == name }) {
					t.Errorf("%s: %s: its program has no such flag, or it is not written --NAME=VALUE:\n%s", c.Name, arg, out)
				}
			}
		}
	}
}

// everything is what the kustomization installs.
func everything(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var paths []string
	for _, resource := range kustomize(t).Resources {
		paths = append(paths, strings.TrimPrefix(resource, "manifests/"))
	}
	objects := must.Get(manifests.Read(paths...))(t)
	return objects
}

func kustomize(t *testing.T) (k kustomization) {
	t.Helper()
	text := must.Get(os.ReadFile("kustomization.yaml"))(t)
	must.Do(t, yaml.Unmarshal(text, &k))
	return k
}

func workloads(t *testing.T, objects []*unstructured.Unstructured) []workload {
	t.Helper()
	var found []workload
	for _, o := range objects {
		switch o.GetKind() {
		case "Deployment":
			var d appsv1.Deployment
			decode(t, o, &d)
			found = append(found, workload{"Deployment " + d.Name, d.Namespace, d.Spec.Selector, d.Spec.Template})
		case "DaemonSet":
			var d appsv1.DaemonSet
			decode(t, o, &d)
			found = append(found, workload{"DaemonSet " + d.Name, d.Namespace, d.Spec.Selector, d.Spec.Template})
		}
	}
	if len(found) == 0 {
		t.Fatal("no workload in the manifests")
	}
	return found
}

// decode refuses fields that the type does not have.
func decode(t *testing.T, o *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
}

func matches(t *testing.T, selector *metav1.LabelSelector, of map[string]string) bool {
	t.Helper()
	s := must.Get(metav1.LabelSelectorAsSelector(selector))(t)
	return !s.Empty() && s.Matches(labels.Set(of))
}

func serves(c *corev1.Container, port intstr.IntOrString) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return port.StrVal == p.Name || port.StrVal == "" && port.IntVal == p.ContainerPort
	})
}
