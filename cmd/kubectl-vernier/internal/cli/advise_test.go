// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// advised are workloads of two namespaces: with room, cut off by the quota, without a quota, and new.
func advised() []client.Object {
	advice := func(namespace, name string, s v1alpha1.SliceAdviceStatus) client.Object {
		s.Workload, s.Container = "Deployment/"+name, "main"
		s.Since, s.Through = metav1.NewTime(now.Add(-96*time.Hour)), metav1.NewTime(now.Add(-5*time.Minute))
		return &v1alpha1.SliceAdvice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "deployment." + name + ".main"}, Status: s}
	}
	return []client.Object{
		advice("team-a", "server", v1alpha1.SliceAdviceStatus{
			Slices: 4, Request: v1alpha1.GPUAmounts{Core: 50, MemMiB: 40_656}, Advice: v1alpha1.GPUAmounts{Core: 23, MemMiB: 12_000}, Confidence: v1alpha1.ConfidenceHigh,
			Core: v1alpha1.CoreUse{P50: 8, P95: 17, P99: 22, Max: 40}, Mem: v1alpha1.MemUse{P99MiB: 9800, PeakMiB: 10_000}, Samples: 30_000, Pods: 6, Days: 4,
			Reasons: []string{"Compute: 98 % of the time used 20 % or less, plus 15 %, at most the request.", "Memory: the peak of 10,000 MiB and a margin of 2,000 MiB, at most the request."},
		}),
		advice("team-a", "train", v1alpha1.SliceAdviceStatus{
			Slices: 1, Request: v1alpha1.GPUAmounts{Core: 30, MemMiB: 8000}, Advice: v1alpha1.GPUAmounts{Core: 45, MemMiB: 11_000}, Confidence: v1alpha1.ConfidenceMedium,
			Core: v1alpha1.CoreUse{P50: 29, P95: 30, P99: 30, Max: 30}, Mem: v1alpha1.MemUse{P99MiB: 8000, PeakMiB: 8000, NeedMiB: 10_000}, ThrottledPercent: 33, Refusals: 7,
			Reasons: []string{"The compute quota cut use off for 33 % of the time: 45 % is the least that can be justified."},
		}),
		advice("team-b", "notebook", v1alpha1.SliceAdviceStatus{
			Slices: 2, Request: v1alpha1.GPUAmounts{MemMiB: 4096}, Advice: v1alpha1.GPUAmounts{MemMiB: 2048}, Confidence: v1alpha1.ConfidenceMedium,
			Mem: v1alpha1.MemUse{P99MiB: 1500, PeakMiB: 1800}, Reasons: []string{"There is no quota of compute; 98 % of the time used 0 % or less."},
		}),
		advice("team-b", "new", v1alpha1.SliceAdviceStatus{
			Slices: 1, Request: v1alpha1.GPUAmounts{Core: 100, MemMiB: 81_313}, Advice: v1alpha1.GPUAmounts{Core: 2, MemMiB: 600}, Confidence: v1alpha1.ConfidenceLow,
			Core: v1alpha1.CoreUse{P50: 1, P95: 1, P99: 1, Max: 1}, Mem: v1alpha1.MemUse{P99MiB: 500, PeakMiB: 500},
		}),
	}
}

func TestAdvise(t *testing.T) {
	for name, args := range map[string]string{
		"advise":           "advise -A",
		"advise-namespace": "advise -n team-b --sort-by .mem.peakMiB",
		"advise.json":      "advise -n team-a -o json",
		"advise-name":      "advise -A -o name",
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := run(t, fakeClient(t, advised()...), args)
			must.Do(t, err)
			golden(t, name, args, out+errOut)
		})
	}
}

func TestAdviseErrors(t *testing.T) {
	if out, errOut, err := run(t, fakeClient(t), "advise -n team-a"); err != nil || out != "" || !strings.HasPrefix(errOut, "No advice in namespace team-a: ") {
		t.Errorf("%q, %q, %v", out, errOut, err)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: "sliceadvices"}, "", errors.New(`User "eve" cannot list it`))
	if _, _, err := run(t, failing{fakeClient(t), forbidden}, "advise -n team-a"); err == nil || !strings.Contains(err.Error(), "list sliceadvices.vernier.dev in namespace team-a") {
		t.Error(err)
	}
}
