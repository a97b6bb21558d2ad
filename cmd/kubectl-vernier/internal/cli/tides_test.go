// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// tideFixture are tides that are open, shut, not read yet and not to be read, and a node of two of them.
func tideFixture() []client.Object {
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	tide := func(name string, lend, outside v1alpha1.Percent, s v1alpha1.TideStatus) client.Object {
		return &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}, Status: s, Spec: v1alpha1.TideSpec{
			Lend: v1alpha1.TideAmounts{Core: lend, Mem: lend - 10}, Outside: v1alpha1.TideAmounts{Core: outside},
		}}
	}
	accepted := func(generation int64, is metav1.ConditionStatus, message string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: is, Message: message, ObservedGeneration: generation}}
	}
	return []client.Object{
		tide("weekend", 50, 0, v1alpha1.TideStatus{Next: at(20 * time.Hour), Conditions: accepted(2, metav1.ConditionTrue, "")}),
		tide("night", 80, 10, v1alpha1.TideStatus{Open: true, Until: at(3 * time.Hour), Conditions: accepted(2, metav1.ConditionTrue, "")}),
		tide("new", 80, 0, v1alpha1.TideStatus{}),
		tide("changed", 80, 0, v1alpha1.TideStatus{Open: true, Until: at(time.Hour), Conditions: accepted(1, metav1.ConditionTrue, "")}),
		tide("wrong", 80, 0, v1alpha1.TideStatus{Conditions: accepted(2, metav1.ConditionFalse, `its nodes lend nothing: spec.windows[0].timeZone: "Mars": unknown`)}),
		&v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "tidal"}, Spec: v1alpha1.SliceLedgerSpec{Tide: &v1alpha1.LedgerTide{Tides: []string{"night", "weekend"}}}},
	}
}

func TestTides(t *testing.T) {
	for name, args := range map[string]string{"tides": "tides", "tides.json": "tides -o json", "tides-name": "tides -o name"} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := run(t, fakeClient(t, tideFixture()...), args)
			must.Do(t, err)
			golden(t, name, args, out+errOut)
		})
	}
}

func TestTidesWithout(t *testing.T) {
	if out, errOut, err := run(t, fakeClient(t), "tides"); err != nil || out != "" || !strings.HasPrefix(errOut, "No tides: ") {
		t.Errorf("%q, %q, %v", out, errOut, err)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: "tides"}, "", errors.New(`User "eve" cannot list it`))
	if _, _, err := run(t, failing{fakeClient(t), forbidden}, "tides"); err == nil || !strings.Contains(err.Error(), "list tides.vernier.dev in all namespaces") {
		t.Error(err)
	}
	noLedgers := interceptor.NewClient(fakeClient(t, tideFixture()...), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, is := list.(*v1alpha1.SliceLedgerList); is {
				return forbidden
			}
			return c.List(ctx, list, o...)
		},
	})
	out, errOut, err := run(t, noLedgers, "tides --sort-by .lend.core")
	if err != nil || !strings.Contains(errOut, "left out: numbers of nodes, which are in the ledgers") || !strings.Contains(out, "night     -       yes") {
		t.Errorf("%s, %s, %v", out, errOut, err)
	}
	if rows := strings.Split(out, "\n"); !strings.HasPrefix(rows[1], "weekend") {
		t.Errorf("not sorted:\n%s", out)
	}
}
