// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
)

// ofClass has the pod ask for units of a class.
func ofClass(pod client.Object, class, n string) *corev1.Pod {
	p := pod.(*corev1.Pod)
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{v1alpha1.ClassResource(class): resource.MustParse(n)}}}}
	return p
}

// classFixture is the fixture with classes, and with pods of some.
func classFixture() []client.Object {
	shares := `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":50,"memMiB":40960}}}`
	has := ofClass(gated("team-a", "has", time.Minute, shares), "gold", "2")
	has.Spec.SchedulingGates = nil
	has.Annotations[v1alpha1.AnnotationPlacement] = `{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"` + gpuA + `","core":50,"memMiB":40960}]}}}`
	return append(fixture(), has, ofClass(gated("team-a", "gold", time.Minute, shares), "gold", "2"),
		ofClass(gated("team-a", "bronze", time.Minute, shares), "bronze", "1"),
		&v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "silver"}, Spec: v1alpha1.GPUClassSpec{
			Models: []string{"Tesla T4", "NVIDIA L4"}, Unit: v1alpha1.GPUUnit{Core: 10}, Topology: "numa"}},
		&v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: v1alpha1.GPUClassSpec{
			Models: []string{"A100"}, Unit: v1alpha1.GPUUnit{Core: 25, MemMiB: 20480}, Mode: v1alpha1.ModeLimiter}})
}

func TestClasses(t *testing.T) {
	for name, args := range map[string]string{
		"classes":       "classes",
		"classes.json":  "classes -o json",
		"classes-name":  "classes -o name",
		"fit-class":     "fit -f testdata/class.yaml",
		"why-class":     "why gold -n team-a",
		"why-no-class":  "why bronze -n team-a",
		"waiting-class": "waiting -n team-a",
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := run(t, fakeClient(t, classFixture()...), args)
			if err != nil || errOut != "" {
				t.Fatalf("error %v, stderr %q", err, errOut)
			}
			golden(t, name, args, out)
		})
	}
}

// Who may not read the pods of all namespaces sees everything but what is granted.
func TestClasses_WhenPodsAreForbidden_RestIsShown(t *testing.T) {
	r := interceptor.NewClient(fakeClient(t, classFixture()...), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, pods := list.(*corev1.PodList); pods {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
			}
			return c.List(ctx, list, o...)
		}})
	out, errOut, err := run(t, r, "classes --no-headers")
	if err != nil || !strings.HasPrefix(errOut, "left out: what is granted") || !strings.HasPrefix(out, "gold ") || len(strings.Split(out, "\n")) != 3 {
		t.Errorf("%s, stderr %q, error %v", out, errOut, err)
	}
}

// A class that no GPU of today serves says so beside the table, and in its fields.
func TestClasses_WhenNoGPUServesOne_ItSaysSo(t *testing.T) {
	objects := append(classFixture(), &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: v1alpha1.GPUClassSpec{
		Models: []string{"B200"}, Unit: v1alpha1.GPUUnit{Core: 25}}})
	const want = "no GPU of the cluster is of its models (B200): add a node with one, or make a class of models that are there: "
	_, errOut, err := run(t, fakeClient(t, objects...), "classes")
	if err != nil || !strings.HasPrefix(errOut, "class none serves no pod: "+want) || strings.Count(errOut, "\n") != 1 {
		t.Errorf("stderr %q, error %v", errOut, err)
	}
	out, _, err := run(t, fakeClient(t, objects...), "classes -o json")
	if err != nil || strings.Count(out, `"unavailable": "`+want) != 1 {
		t.Errorf("%s, error %v", out, err)
	}
}

// A class that was deleted and made again with another unit: what pods have of the first is said
// apart, and as the scheduler counts units and not what they amount to, no more are free than it
// would let in.
func TestHostileClassOfAnotherUnit(t *testing.T) {
	const mem = 81920
	for name, tt := range map[string]struct {
		core v1alpha1.Percent // of the pods' units
		want string
	}{
		"smaller": {8, "4   3 (3 of an earlier unit)   1"},
		"larger":  {33, "4   3 (3 of an earlier unit)   0"},
		"same":    {25, "4   3   1"},
	} {
		ledger := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: gpuA, Core: 100, Mem: mem}}},
			Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{{UUID: gpuA, Model: "NVIDIA A100", Mem: mem, Healthy: true}},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}}}
		objects := []client.Object{ledger, &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: v1alpha1.GPUClassSpec{Models: []string{"A100"}, Unit: v1alpha1.GPUUnit{Core: 25}}}}
		for i := range 3 {
			p := ofClass(gated("team-a", fmt.Sprint("p", i), time.Minute, fmt.Sprintf(`{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":%d,"memPercent":%d}}}`, tt.core, tt.core)), "gold", "1")
			p.Spec.SchedulingGates = nil
			p.Annotations[v1alpha1.AnnotationPlacement] = fmt.Sprintf(`{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"%s","core":%d,"memMiB":1}]}}}`, gpuA, tt.core)
			ledger.Spec.Devices[0].Slices = append(ledger.Spec.Devices[0].Slices, v1alpha1.Slice{Pod: p.UID, Owner: "team-a/" + p.Name, Ctr: "main", Core: tt.core, Mem: mem * v1alpha1.MiB(tt.core) / 100})
			objects = append(objects, p)
		}
		out, errOut, err := run(t, fakeClient(t, objects...), "classes --no-headers")
		if err != nil || errOut != "" || !strings.HasSuffix(strings.TrimSpace(out), "   "+tt.want) {
			t.Errorf("%s: %s, stderr %q, error %v; want %s", name, out, errOut, err, tt.want)
		}
	}
}
