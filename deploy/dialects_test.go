// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
)

// What the API server sends to the webhook is what the webhook understands, one
// dialect at a time, and nothing of theirs where none is switched on.
func TestDialectWords(t *testing.T) {
	plain, err := render(t)
	if err != nil {
		t.Fatal(plain.text)
	}
	without := condition(t, plain, "MutatingWebhookConfiguration")
	if _, c := plain.pod(t, "vernier-webhook"); len(c.Args) > 0 || strings.Contains(without, "n in [") {
		t.Errorf("arguments %q without a dialect, and the condition %s", c.Args, without)
	}
	all := must.Get(dialect.Settings{Dialects: "all"}.Set())(t)
	sliced := must.Get(dialect.Settings{Dialects: "nvidia", NVIDIAReplicas: 4, NVIDIATimeSlicing: true}.Set())(t)
	renamed := must.Get(dialect.Settings{Dialects: "hami,volcano", Renamed: map[corev1.ResourceName]corev1.ResourceName{
		"nvidia.com/gpu": "nvidia.com/vgpu", "volcano.sh/vgpu-cores": "example.com/cores"}}.Set())(t)
	for i, d := range slices.Concat(all, sliced, renamed) {
		words, more := d.Words(), ""
		switch {
		case i > len(all):
			more = `,dialects.renamed.nvidia\.com/gpu=nvidia.com/vgpu,dialects.renamed.volcano\.sh/vgpu-cores=example.com/cores`
		case i == len(all):
			more = ",dialects.nvidiaTimeSlicing=true"
		}
		r, err := render(t, "--set=dialects.enabled={"+words.Name+"},dialects.nvidiaReplicas=4,dialects.gpushareUnit=MiB"+more)
		if err != nil {
			t.Errorf("%s: the chart does not know it: %s", words.Name, r.text)
			continue
		}
		if _, c := r.pod(t, "vernier-webhook"); !slices.Contains(c.Args, "--dialects="+words.Name) ||
			!slices.Contains(c.Args, "--nvidia-replicas=4") || slices.Contains(c.Args, "--nvidia-time-slicing") != (i == len(all)) ||
			slices.Contains(c.Args, "--renamed-resource=nvidia.com/gpu=nvidia.com/vgpu") != (i > len(all)) || !slices.Contains(c.Args, "--gpushare-unit=MiB") {
			t.Errorf("%s: arguments %q", words.Name, c.Args)
		}
		var names []string
		for _, name := range words.Resources {
			names = append(names, string(name))
		}
		asks := condition(t, r, "MutatingWebhookConfiguration")
		// In the resources of containers, once more where they name very many, and twice in those
		// of the pod.
		if list := "n in " + celList(names); strings.Count(asks, list) != 4 {
			t.Errorf("%s: %s does not stand in %s", words.Name, list, asks)
		}
		makes := condition(t, r, "ValidatingWebhookConfiguration")
		if list := "n in " + celList(names); strings.Count(makes, list) != 3 {
			t.Errorf("%s: %s does not stand in %s", words.Name, list, makes)
		}
		if list := "t.spec.?schedulerName.orValue('') in " + celList(words.Schedulers); strings.Contains(makes, list) != (len(words.Schedulers) > 0) {
			t.Errorf("%s: %s and %s", words.Name, list, makes)
		}
		// Where a template names very many resources, they are looked for one by one.
		for _, name := range names {
			if one := "'" + name + "' in r"; !strings.Contains(makes, one) {
				t.Errorf("%s: %s does not stand in %s", words.Name, one, makes)
			}
		}
		for _, expression := range []string{asks, makes} {
			if list := celList(words.AnnotationPrefixes) + ".exists(p, k.startsWith(p))"; strings.Contains(expression, list) != (len(words.AnnotationPrefixes) > 0) {
				t.Errorf("%s: %s and %s", words.Name, list, expression)
			}
		}
	}
}

// condition is the expression that the API server evaluates for every pod or workload.
func condition(t *testing.T, r *rendered, kind string) string {
	t.Helper()
	hooks, _, err := unstructured.NestedSlice(r.object(kind, "vernier-webhook").Object, "webhooks")
	must.Do(t, err)
	return hooks[0].(map[string]any)["matchConditions"].([]any)[0].(map[string]any)["expression"].(string)
}

func celList(names []string) string { return "['" + strings.Join(names, "', '") + "']" }

func TestDialectValues(t *testing.T) {
	for args, want := range map[string]string{
		"--set=dialects.enabled={hami,gpushare}":                          "",
		"--set=dialects.enabled={hammi}":                                  "dialects",
		"--set=dialects.enabled={hami,hami}":                              "dialects",
		"--set=dialects.enabled={nvidia}":                                 "nvidiaReplicas",
		"--set=dialects.gpushareUnit=GB":                                  "gpushareUnit",
		"--set=dialects.nvidiaTimeSlicing=true":                           "enabled",
		"--set=dialects.enabled={nvidia},dialects.nvidiaTimeSlicing=true": "nvidiaReplicas",
		"--set=dialects.hamiDefaultCores=101":                             "hamiDefaultCores",
		`--set=dialects.renamed.nvidia\.com/gpumem=example.com/memory`:    "",
		`--set=dialects.renamed.nvidia\.com/gpumem=memory`:                "renamed",
		`--set=dialects.renamed.nvidia\.com/gpu\.shared=a.b/c`:            "propertyName",
	} {
		r, err := render(t, args)
		if (err != nil) != (want != "") || !strings.Contains(r.text, want) {
			t.Errorf("%s: %v: %s", args, err, r.text)
		}
	}
}
