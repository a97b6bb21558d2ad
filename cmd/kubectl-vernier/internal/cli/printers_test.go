// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What kubectl's users know of its get works here, over the documented JSON form.
func TestHabitsOfKubectl(t *testing.T) {
	objects := fixture()
	for _, o := range objects {
		if o.GetName() == "big" || o.GetName() == "odd" {
			o.SetLabels(map[string]string{"team": "blue"})
		}
	}
	objects = append(objects,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"zone": "a"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-2", Labels: map[string]string{"zone": "b"}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "lost", Labels: map[string]string{"team": "blue"}}})
	for args, want := range map[string]string{
		"nodes -o name":   "node/gpu-1\nnode/gpu-2\n",
		"devices -o name": "gpu/gpu-1/0\ngpu/gpu-1/1\ngpu/gpu-1/" + gpuC + "\ngpu/gpu-2/0\n",
		// A pod with two slices is named once.
		"slices -A -o name": "pod/train\npod/gone\npod/lost\n",
		"devices -o jsonpath={.items[*].memMiB.granted}":       "20481 0 7680 0",
		"devices -o go-template={{.kind}}":                     "DeviceList",
		"nodes -o custom-columns=N:.name,USED:.memMiB.granted": "N       USED\ngpu-1   28161\ngpu-2   0\n",
		"-A -o jsonpath={.nodes[0].name}":                      "gpu-1",

		"devices --sort-by=.memMiB.granted -o jsonpath={.items[*].memMiB.granted}": "0 0 7680 20481",
		"slices -A --sort-by .memMiB -o jsonpath={.items[*].memMiB}":               "1 7680 10240 20480",
		"waiting -A --sort-by={.created} -o jsonpath={.items[0].pod}":              "queued",

		"nodes -l zone=b -o name":                 "node/gpu-2\n",
		"devices gpu-2 -o name":                   "gpu/gpu-2/0\n",
		"nodes gpu-2 gpu-1 -o name":               "node/gpu-1\nnode/gpu-2\n",
		"slices -A -l team=blue -o name":          "pod/lost\n",
		"waiting -A --selector team -o name":      "pod/big\npod/odd\n",
		"-A -l team -o jsonpath={.slices[*].pod}": "lost",
	} {
		out, errOut, err := run(t, fakeClient(t, objects...), args)
		if err != nil || out != want || errOut != "" {
			t.Errorf("%s prints %q, %q, %v; want %q", args, out, errOut, err, want)
		}
	}
	for args, says := range map[string]string{
		"-A -o name":            "one list",
		"nodes --sort-by=.none": "couldn't find any field",
		"nodes -o jsonpath={":   "unclosed",
	} {
		if out, _, err := run(t, fakeClient(t, objects...), args); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s prints %q, %v; want %q", args, out, err, says)
		}
	}
}
