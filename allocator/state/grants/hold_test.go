// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

func TestHolds(t *testing.T) {
	l := ledger()
	for _, pod := range []types.UID{"a", "b", "c"} {
		mustGrant(t, l, pod, plan(placement.Grant{Container: "x", UUID: "GPU-0", Core: 30, Mem: 300}))
	}
	first, second := time.Unix(1000, 7), time.Unix(2000, 0)
	Hold(l, "PodGroup/ns/g", first, "a")
	Hold(l, "PodGroup/ns/h", first, "b")
	Hold(l, "PodGroup/ns/g", second, "c")
	want := []v1alpha1.Hold{
		{Owner: "PodGroup/ns/g", Until: metav1.Unix(2000, 0), Pods: []types.UID{"a", "c"}},
		{Owner: "PodGroup/ns/h", Until: metav1.Unix(1000, 0), Pods: []types.UID{"b"}},
	}
	if diff := cmp.Diff(want, l.Spec.Holds); diff != "" {
		t.Error(diff)
	}
	if h := Held(l)["c"]; h == nil || h.Owner != "PodGroup/ns/g" || Held(l)["d"] != nil {
		t.Errorf("held: %+v", Held(l))
	}

	is := func(pod types.UID) func(types.UID) bool { return func(u types.UID) bool { return u == pod } }
	if Commit(l, is("d")) {
		t.Error("committing a pod without a hold changed something")
	}
	if !Commit(l, is("a")) || Held(l)["a"] != nil || Placement(l, "a") == nil {
		t.Errorf("a committed pod keeps its slices and loses its hold: %+v", l.Spec)
	}
	if !Release(l, is("c")) || Placement(l, "c") != nil {
		t.Errorf("a released pod loses both: %+v", l.Spec)
	}
	if diff := cmp.Diff(want[1:], l.Spec.Holds); diff != "" {
		t.Error(diff)
	}
	// A hold whose slices somebody edited away goes as well.
	l.Spec.Devices = nil
	if !Release(l, is("b")) || len(l.Spec.Holds) > 0 {
		t.Errorf("the last hold stays: %+v", l.Spec.Holds)
	}
}
