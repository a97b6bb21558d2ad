// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// fleetOf is a ledger of one node with GPUs.
func fleetOf(devices ...v1alpha1.DeviceStatus) *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Status: v1alpha1.SliceLedgerStatus{Devices: devices}}
}

// What the quota of a namespace says, and what that is at worst on the fleet.
func TestQuota(t *testing.T) {
	t4, h100 := v1alpha1.DeviceStatus{Model: "Tesla T4", Mem: 16384}, v1alpha1.DeviceStatus{Model: "H100", Mem: 81559}
	cut := h100
	cut.MIG = v1alpha1.MIGEnabled
	for name, tt := range map[string]struct {
		args  string
		fleet []v1alpha1.DeviceStatus
		hard  [4]int64 // of gpu-core, gpu-mem, gpu-mem-mib, gpu
		says  []string
		err   string
	}{
		"percent": {args: "--gpus 2.5", fleet: []v1alpha1.DeviceStatus{h100, t4}, hard: [4]int64{250, 250, 0, 640},
			says: []string{"resourcequota/vernier-gpus created\nAt most 250 % of a GPU's compute and as much memory, in 640 slices", "at worst 203897 MiB, on H100 (81559 MiB each)", "refused: gpu-mem-mib, and classes with memMiB", "shares of init containers", "ask for memory alone compute in what others leave"}},
		"MiB": {args: "--gpus 2.5 --memory mib", fleet: []v1alpha1.DeviceStatus{h100, t4}, hard: [4]int64{250, 0, 40960, 640},
			says: []string{"40960, which are 2.5 of Tesla T4 (16384 MiB), and 0.5 of H100 (81559 MiB)", "refused: gpu-mem, gpu-core without gpu-mem-mib"}},
		"one percent":      {args: "--gpus 0.01", fleet: []v1alpha1.DeviceStatus{t4}, hard: [4]int64{1, 1, 0, 2}},
		"MIG":              {args: "--gpus 2.5", fleet: []v1alpha1.DeviceStatus{t4, cut}, hard: [4]int64{250, 250, 0, 17}, says: []string{"1 GPU(s) are in MIG mode: a slice is a whole instance there"}},
		"MIG, one percent": {args: "--gpus 0.01", fleet: []v1alpha1.DeviceStatus{cut}, hard: [4]int64{1, 1, 0, 1}},
		"no GPUs yet":      {args: "--gpus 3", hard: [4]int64{300, 300, 0, 768}},
		"no GPUs to count": {args: "--gpus 3 --memory mib", err: "no node reports a GPU yet"},
		"too fine":         {args: "--gpus 2.555", err: `--gpus "2.555": write a number of GPUs, to a hundredth, such as 2.5 or 0.25`},
		"none":             {args: "--gpus 0", err: `--gpus "0"`},
		"negative":         {args: "--gpus=-1", err: `--gpus "-1"`},
		"a comma":          {args: "--gpus 2,5", err: `--gpus "2,5"`},
		"too many":         {args: "--gpus 99999999999", err: `--gpus "99999999999"`},
		"left out":         {args: "", err: `--gpus ""`},
		"another unit":     {args: "--gpus 1 --memory GiB", err: `--memory "GiB": write percent or mib`},
		"two namespaces":   {args: "b --gpus 1", err: "name one namespace"},
	} {
		r := fakeClient(t, fleetOf(tt.fleet...))
		out, _, err := run(t, r, "quota team-a "+tt.args)
		if tt.err != "" || err != nil {
			if tt.err == "" || !strings.Contains(errorText(err), tt.err) {
				t.Errorf("%s: error %v, want %q", name, err, tt.err)
			}
			continue
		}
		for _, part := range tt.says {
			if !strings.Contains(out, part) {
				t.Errorf("%s: does not print %q:\n%s", name, part, out)
			}
		}
		quota := &corev1.ResourceQuota{}
		must.Do(t, r.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "vernier-gpus"}, quota))
		for i, of := range []corev1.ResourceName{"gpu-core", "gpu-mem", "gpu-mem-mib", "gpu"} {
			if got, there := quota.Spec.Hard["requests.vernier.dev/"+of]; !there || got.Value() != tt.hard[i] {
				t.Errorf("%s: %s of %s, want %d", name, got.String(), of, tt.hard[i])
			}
		}
		if gpus := strings.Fields(tt.args)[1]; quota.Labels[v1alpha1.LabelGPULimit] != gpus {
			t.Errorf("%s: labels %v", name, quota.Labels)
		}
	}
}

var limitsPods = &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "vernier-limits"}}

// It is written once, then changed, and a dry run writes nothing.
func TestQuotaAgain(t *testing.T) {
	r := fakeClient(t, fleetOf(), limitsPods)
	for _, step := range []struct{ args, prints string }{
		{"--gpus 1 --dry-run=client", "resourcequota/vernier-gpus created (dry run)\n"},
		{"--gpus 1 --dry-run=server", "resourcequota/vernier-gpus created (server dry run)\n"},
		{"--gpus 1", "resourcequota/vernier-gpus created\n"},
		{"--gpus 1.00", "resourcequota/vernier-gpus unchanged\n"},
		{"--gpus 2 --dry-run=server", "resourcequota/vernier-gpus configured (server dry run)\n"},
		{"--gpus 2", "resourcequota/vernier-gpus configured\n"},
		{"--gpus 2", "resourcequota/vernier-gpus unchanged\n"},
		{"--gpus 0.5 --dry-run=client -o yaml", "kind: ResourceQuota\nmetadata:\n  labels:\n    vernier.dev/gpu-limit: \"0.5\"\n  name: vernier-gpus\n  namespace: team-a\nspec:\n  hard:\n    requests.vernier.dev/gpu: \"128\"\n"},
	} {
		if out, errOut, err := run(t, r, "quota team-a "+step.args); !strings.Contains(out, step.prints) || errOut != "" || err != nil {
			t.Errorf("%s: %q, stderr %q, error %v, want %q", step.args, out, errOut, err, step.prints)
		}
	}
}

// What cannot be printed is not written.
func TestQuotaOutput(t *testing.T) {
	for output, want := range map[string]struct{ out, err string }{
		"name":                               {out: "resourcequota/vernier-gpus\n"},
		"jsonpath={.spec.hard['a']}":         {},
		"custom-columns=NAME:.metadata.name": {out: "NAME\nvernier-gpus\n"},
		"go-template={{.kind.x}}":            {err: "evaluate field x"},
		"jsonpath={.spec":                    {err: "unclosed action"},
		"table":                              {err: `--output "table" is unknown`},
	} {
		r := fakeClient(t, fleetOf(), limitsPods)
		out, _, err := run(t, r, "quota team-a --gpus 1 -o "+output)
		missing := r.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "vernier-gpus"}, &corev1.ResourceQuota{})
		if out != want.out || (err == nil) != (want.err == "") || !strings.Contains(errorText(err), want.err) || (missing == nil) != (err == nil) {
			t.Errorf("-o %s: %q, error %v, the quota: %v", output, out, err, missing)
		}
	}
}

// A cluster of an older release has no policy that refuses what the quota does not count.
func TestQuotaWithoutItsPolicy(t *testing.T) {
	denied := interceptor.NewClient(fakeClient(t, fleetOf()), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*admissionregistrationv1.ValidatingAdmissionPolicy); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "validatingadmissionpolicies"}, key.Name, nil)
		}
		return c.Get(ctx, key, o, opts...)
	}})
	for warns, r := range map[string]client.Client{"": denied, "warning: pods may have shares that the quota does not count": fakeClient(t, fleetOf())} {
		out, errOut, err := run(t, r, "quota team-a --gpus 1")
		if !strings.HasPrefix(errOut, warns) || (errOut == "") != (warns == "") || !strings.HasPrefix(out, "resourcequota/vernier-gpus created\n") || err != nil {
			t.Errorf("%q, stderr %q, error %v, want the warning %q", out, errOut, err, warns)
		}
	}
}
