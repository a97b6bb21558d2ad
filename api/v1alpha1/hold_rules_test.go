// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package v1alpha1_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// testHoldRules asserts Invariant 1 for what is held: to the API server a held slice
// is as much as any other.
func testHoldRules(t *testing.T, c client.Client) {
	spec := func(other v1alpha1.Slice, holds ...v1alpha1.Hold) v1alpha1.SliceLedgerSpec {
		held := v1alpha1.Slice{Pod: "held", Owner: "ns/a", Ctr: "main", Core: 60, Mem: 600}
		other.Pod, other.Owner, other.Ctr = "other", "ns/b", "main"
		return v1alpha1.SliceLedgerSpec{Holds: holds,
			Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{held, other}}}}
	}
	hold := func(owner string, pods ...types.UID) v1alpha1.Hold {
		return v1alpha1.Hold{Owner: owner, Until: metav1.Now(), Pods: pods}
	}
	gang := hold("PodGroup/ns/gang", "held")
	for name, test := range map[string]struct {
		spec    v1alpha1.SliceLedgerSpec
		refusal string
	}{
		"the rest beside what is held": {spec(v1alpha1.Slice{Core: 40, Mem: 400}, gang), ""},
		"more compute than the rest":   {spec(v1alpha1.Slice{Core: 41, Mem: 400}, gang), "more compute than the device has"},
		"more memory than the rest":    {spec(v1alpha1.Slice{Core: 40, Mem: 401}, gang), "more memory than the device has"},
		"for nobody":                   {spec(v1alpha1.Slice{Mem: 1}, hold("PodGroup/ns/gang")), "pods"},
		"of nobody":                    {spec(v1alpha1.Slice{Mem: 1}, hold("", "held")), "owner"},
	} {
		t.Run("hold/"+name, func(t *testing.T) {
			err := c.Create(t.Context(), &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Spec: test.spec})
			switch {
			case test.refusal == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.refusal != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.refusal)):
				t.Errorf("got %v, want a refusal that says %q", err, test.refusal)
			}
		})
	}
}
