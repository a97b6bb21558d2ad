// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// The names are those of the chart as it is rendered.
func TestUninstallNamesAll(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	files := must.Get(filepath.Glob(filepath.Join(root, "deploy/manifests/*/*.yaml")))(t)
	found := map[string][]string{}
	for _, file := range files {
		for _, doc := range strings.Split(string(must.Get(os.ReadFile(file))(t)), "\n---\n") {
			kind, name := regexp.MustCompile(`(?m)^kind: (\S+)$`).FindStringSubmatch(doc), regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*?  name: (\S+)$`).FindStringSubmatch(doc)
			if kind != nil && name != nil {
				found[kind[1]] = append(found[kind[1]], name[1])
			}
		}
	}
	for kind, want := range map[string][]string{"ClusterRole": clusterRoles, "ClusterRoleBinding": roleBindings, "CustomResourceDefinition": definitions} {
		slices.Sort(found[kind])
		if !slices.Equal(found[kind], want) {
			t.Errorf("%s: the chart has %v, uninstall %v", kind, found[kind], want)
		}
	}
}

// installed is a cluster with Vernier, with a pod that waits for it and for others, and with others' objects.
func installed() (all []client.Object) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/part-of": "vernier"}}
	}
	waits := gated("team-a", "waits", 0, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`, "example.com/other")
	one := resource.MustParse("1")
	all = []client.Object{
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta("vernier-webhook")}, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta("vernier-webhook")},
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta("vernier")}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta("vernier")},
		&corev1.Namespace{ObjectMeta: meta(v1alpha1.SystemNamespace)}, waits,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"zone": "a", v1alpha1.LabelGPUCount: "2"}}, Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": one, v1alpha1.ResourceCore: one, v1alpha1.ClassResource("gold"): one}}},
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "others"}}, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "others"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}},
	}
	for _, name := range clusterRoles {
		all = append(all, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range roleBindings {
		all = append(all, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range definitions {
		all = append(all, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return all
}

// present is what there is, by kind and name, and the pod's gates and the node's capacity.
func present(t *testing.T, c client.Client) (all []string) {
	t.Helper()
	for _, o := range installed() {
		kinds, _, err := c.Scheme().ObjectKinds(o)
		must.Do(t, err)
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		text := kinds[0].Kind + "/" + o.GetName()
		switch o := o.(type) {
		case *corev1.Pod:
			text += fmt.Sprint(" ", o.Spec.SchedulingGates)
		case *corev1.Node:
			text += fmt.Sprint(" ", len(o.Status.Capacity), o.Labels)
		}
		all = append(all, text)
	}
	return all
}

// Without --yes nothing changes. With it nothing of Vernier is left, and all of others, wherever it was killed
// and run again; admission goes before the gates, and these before the parts that run.
func TestUninstall(t *testing.T) {
	left := []string{"Pod/waits [{example.com/other}]", "Node/gpu-1 1 map[zone:a]", "ValidatingAdmissionPolicy/others", "ClusterRole/others", "Namespace/team-a"}
	died := errors.New("killed")
	for kill := -1; ; kill++ {
		writes := 0
		var order []string
		write := func(o client.Object) error {
			if writes++; writes == kill {
				return died
			}
			order = append(order, fmt.Sprintf("%T", o))
			return nil
		}
		c := interceptor.NewClient(fakeClient(t, installed()...), interceptor.Funcs{
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				return errors.Join(write(o), client.IgnoreNotFound(c.Delete(ctx, o, opts...)))
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				return errors.Join(write(o), c.Patch(ctx, o, p, opts...))
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				return errors.Join(write(o), c.SubResource(sub).Patch(ctx, o, p, opts...))
			},
		})
		if kill < 0 {
			before := present(t, c)
			out, errOut, err := run(t, c, "uninstall")
			if err != nil || writes > 0 || !slices.Equal(present(t, c), before) || !strings.Contains(out, "CustomResourceDefinition/sliceledgers.vernier.dev deleted (dry run)\n") || !strings.Contains(errOut, "nothing was changed: --yes does it") {
				t.Errorf("the dry run: %d writes, error %v, stderr %q\n%s", writes, err, errOut, out)
			}
			continue
		}
		_, _, err := run(t, c, "uninstall --yes")
		killed := kill > 0 && writes >= kill
		if killed != errors.Is(err, died) {
			t.Errorf("killed at write %d: %v", kill, err)
		}
		if killed {
			writes = kill + 1 // no more
			if _, _, err := run(t, c, "uninstall --yes"); err != nil {
				t.Errorf("again after write %d: %v", kill, err)
			}
		}
		if got := present(t, c); !slices.Equal(got, left) {
			t.Errorf("killed at write %d: left %q, want %q", kill, got, left)
		}
		if kill == 0 {
			policy, gate := slices.Index(order, "*v1.ValidatingAdmissionPolicy"), slices.Index(order, "*v1.Pod")
			if ns := slices.Index(order, "*v1.Namespace"); policy < 0 || policy > gate || gate > ns {
				t.Errorf("order %v", order)
			}
		}
		if kill > 0 && !killed {
			return
		}
	}
}

// While slices are in use it refuses and changes nothing; gates that policies still hold are tried again.
func TestUninstall_Refuses(t *testing.T) {
	train := gated("team-a", "train", 0, "")
	train.Spec.SchedulingGates, train.Spec.NodeName = nil, "gpu-1"
	ledger := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: gpuA, Slices: []v1alpha1.Slice{{Pod: train.UID, Owner: "team-a/train", Ctr: "main"}, {Pod: "gone", Owner: "team-a/gone", Ctr: "main"}}}}}}
	busy := fakeClient(t, append(installed(), train, ledger)...)
	before := present(t, busy)
	if _, _, err := run(t, busy, "uninstall --yes"); err == nil || !strings.Contains(err.Error(), "1 pod(s) have slices: team-a/train") || !slices.Equal(present(t, busy), before) {
		t.Errorf("in use: %v", err)
	}
	if _, _, err := run(t, busy, "uninstall --yes --wait --timeout 1ms"); err == nil || !strings.Contains(err.Error(), "after 1ms: 1 pod(s) have slices: team-a/train. Run it again") {
		t.Errorf("waits: %v", err)
	}
	must.Do(t, busy.Delete(t.Context(), train))
	if out, _, err := run(t, busy, "uninstall"); err != nil {
		t.Errorf("with slices of a pod that is gone: %v\n%s", err, out)
	}
	held := 1
	c := interceptor.NewClient(fakeClient(t, installed()...), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if held > 0 {
				held--
				return apierrors.NewForbidden(corev1.Resource("pods"), o.GetName(), errors.New("a policy holds"))
			}
			return c.Patch(ctx, o, p, opts...)
		}})
	if _, _, err := run(t, c, "uninstall --yes"); err != nil || held > 0 {
		t.Errorf("a policy that holds for a moment: %v", err)
	}
}
