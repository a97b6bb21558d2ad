// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
)

// tenant may read neither ledgers nor classes. The webhook answers its dry runs with the rooms and the
// error.
func tenant(t *testing.T, err error, rooms ...fleet.Room) client.Client {
	t.Helper()
	return interceptor.NewClient(fakeClient(t, classFixture()...), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			switch list.(type) {
			case *v1alpha1.SliceLedgerList, *v1alpha1.GPUClassList, *corev1.NodeList:
				return apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: "sliceledgers"}, "", nil)
			}
			return c.List(ctx, list, o...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, pod := o.(*corev1.Pod); !pod || !slices.Contains(opts, client.CreateOption(client.DryRunAll)) || o.GetName() != "" {
				t.Errorf("creates %T %s", o, o.GetName())
			}
			warnings{}.HandleWarningHeaderWithContext(ctx, 299, "", "spec.containers[0]: of something else")
			for _, room := range rooms {
				warnings{}.HandleWarningHeaderWithContext(ctx, 299, "", room.String())
			}
			return err
		}})
}

// Who may not read ledgers has the answers by dry runs: whether a pod fits, which classes there are, and why a
// pod waits.
func TestRoomByDryRun(t *testing.T) {
	none := fleet.Room{Cause: cause.Insufficient, Why: "container main needs more"}
	unknown := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil)
	for name, tt := range map[string]struct {
		err        error
		rooms      []fleet.Room
		args, in   string
		says       []string
		errs, left string
	}{
		"fits":              {nil, []fleet.Room{{Pods: 2}}, "fit -f testdata/pod.yaml", "", []string{"Pod/small: fits now\n"}, "", "The answer is of GPUs only"},
		"would wait":        {nil, []fleet.Room{none}, "fit -f testdata/pod.yaml", "", []string{"Pod/small: would wait: container main needs more\n"}, "1 of 1 pods would wait", "vernier-viewer"},
		"some fit":          {nil, []fleet.Room{{Pods: 2}}, "fit -f -", asking("Deployment", "a", "replicas: 3, ", "20"), []string{"Deployment/a: 2 of 3 pods fit now; 1 would wait: there is room for no more"}, "1 of 3 pods would wait", ""},
		"more than counted": {nil, []fleet.Room{{Pods: fleet.MaxPods}}, "fit -f -", asking("Deployment", "a", "replicas: 300, ", "20"), []string{"Deployment/a: all of 300 pods fit now\n"}, "", ""},
		"of a class":        {nil, []fleet.Room{{Pods: 1}}, "fit -f testdata/class.yaml", "", []string{": fits now\n"}, "", ""},
		"of no class":       {unknown, []fleet.Room{{Class: "gold", Pods: 1}}, "fit -f testdata/class.yaml", "", []string{"would be refused: "}, "would wait or be refused", ""},
		"webhook silent":    {nil, nil, "fit -f testdata/pod.yaml", "", []string{"Pod/small: would be admitted; whether there is room is not known\n"}, "sliceledgers", ""},
		"classes": {unknown, []fleet.Room{{Class: "gold", Pods: fleet.MaxPods}, {Class: "iron", Cause: cause.NoGPUOfClass, Why: "none of the GPUs"}}, "classes -n team-a --no-headers", "",
			[]string{"gold 100 or more -\n", "iron 0 none of the GPUs\n"}, "", "left out: models, units and capacity; the cluster role vernier-viewer shows them"},
		"no classes":    {unknown, nil, "classes -n team-a", "", nil, "the webhook has not named any class either, in answer to a dry run in namespace team-a", ""},
		"why, no room":  {nil, []fleet.Room{none}, "why big -n team-a", "", []string{"it waits for a place: container main needs more\n", "InsufficientGPU: wait"}, "", "left out: what nodes have for the pod"},
		"why, class":    {nil, []fleet.Room{none}, "why gold -n team-a", "", []string{"it waits for a place: container main needs more\n"}, "", ""},
		"why, room":     {nil, []fleet.Room{{Pods: 3}}, "why new -n team-b", "", []string{"there is room: the allocator has not said anything of it yet"}, "", ""},
		"why, not said": {apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil), nil, "why big -n team-a", "", []string{"The allocator's last event"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			input = strings.NewReader(tt.in)
			out, errOut, err := run(t, tenant(t, tt.err, tt.rooms...), tt.args)
			if (err == nil) != (tt.errs == "") || !strings.Contains(errorText(err), tt.errs) || !strings.Contains(errOut, tt.left) {
				t.Errorf("error %v, stderr %q, stdout\n%s", err, errOut, out)
			}
			squeezed := strings.Join(strings.FieldsFunc(out, func(r rune) bool { return r == ' ' }), " ")
			for _, want := range tt.says {
				if !strings.Contains(squeezed, want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
		})
	}
}
